-- A repository of schema version 1, as the last program that wrote this version wrote it.
PRAGMA application_id = 1146376274;
PRAGMA user_version = 1;
PRAGMA journal_mode = WAL;
BEGIN TRANSACTION;
CREATE TABLE condition (
        sequence INTEGER PRIMARY KEY REFERENCES record,
        driver TEXT,
        library TEXT) STRICT;
INSERT INTO "condition" VALUES(1,'580.1','130100');
INSERT INTO "condition" VALUES(3,'580.1','130100');
INSERT INTO "condition" VALUES(6,NULL,'130100');
INSERT INTO "condition" VALUES(7,NULL,'130100');
CREATE TABLE evidence (
        sequence INTEGER PRIMARY KEY,
        recorded TEXT NOT NULL,
        kind TEXT NOT NULL,
        gpu_model TEXT NOT NULL,
        driver TEXT,
        library TEXT,
        date TEXT NOT NULL,
        content TEXT NOT NULL) STRICT;
INSERT INTO "evidence" VALUES(1,'2026-11-28T12:00:02.123456+00:00','split','H200','580.1','130100','2026-11-22','{"share": 50, "of": [0.1]}');
INSERT INTO "evidence" VALUES(2,'2026-11-28T12:00:04.123456+00:00','result','H200',NULL,NULL,'2026-11-23','{"note": "\u00fc\n"}');
INSERT INTO "evidence" VALUES(3,'2026-11-28T12:00:04.123456+00:00','split','H200',NULL,'130100','2026-11-24','{}');
CREATE TABLE latency (
        sequence INTEGER PRIMARY KEY REFERENCES profile,
        p99_s REAL NOT NULL) STRICT;
INSERT INTO "latency" VALUES(1,0.02);
INSERT INTO "latency" VALUES(6,0.02);
CREATE TABLE measurement (
        sequence INTEGER PRIMARY KEY REFERENCES record,
        gpu_model TEXT NOT NULL,
        status TEXT NOT NULL CHECK (status IN ('ok', 'failed')),
        power_w REAL,
        source TEXT,
        date TEXT) STRICT;
INSERT INTO "measurement" VALUES(3,'V100','ok',250.5,'dovetail measure','2026-11-21');
INSERT INTO "measurement" VALUES(4,'V100','ok',NULL,NULL,NULL);
INSERT INTO "measurement" VALUES(5,'V100','ok',NULL,NULL,NULL);
INSERT INTO "measurement" VALUES(8,'V100','ok',NULL,NULL,NULL);
INSERT INTO "measurement" VALUES(9,'H200','failed',NULL,NULL,NULL);
INSERT INTO "measurement" VALUES(10,'H200','failed',NULL,NULL,NULL);
CREATE TABLE member (
        sequence INTEGER NOT NULL REFERENCES measurement,
        position INTEGER NOT NULL,
        workload TEXT NOT NULL,
        share INTEGER,
        slowdown REAL,
        PRIMARY KEY (sequence, position)) STRICT, WITHOUT ROWID;
INSERT INTO "member" VALUES(3,0,'lm é',40,1.1);
INSERT INTO "member" VALUES(3,1,'b',NULL,1.0e+15);
INSERT INTO "member" VALUES(4,0,'b',NULL,1.0);
INSERT INTO "member" VALUES(4,1,'b',NULL,2.0);
INSERT INTO "member" VALUES(5,0,'b',NULL,1.5);
INSERT INTO "member" VALUES(5,1,'c',NULL,2.0);
INSERT INTO "member" VALUES(8,0,'b',NULL,1.0);
INSERT INTO "member" VALUES(8,1,'c',101,9.5);
INSERT INTO "member" VALUES(9,0,'a',NULL,NULL);
INSERT INTO "member" VALUES(9,1,'b',NULL,NULL);
INSERT INTO "member" VALUES(9,2,'c',NULL,NULL);
INSERT INTO "member" VALUES(10,0,'a',NULL,NULL);
INSERT INTO "member" VALUES(10,1,'b',NULL,20.0);
CREATE TABLE metric (
        sequence INTEGER NOT NULL REFERENCES profile,
        name TEXT NOT NULL,
        mean REAL,
        variance REAL,
        PRIMARY KEY (sequence, name)) STRICT, WITHOUT ROWID;
INSERT INTO "metric" VALUES(1,'gpu_util',0.1,NULL);
INSERT INTO "metric" VALUES(1,'ipc',1.5,3.00000000000000044408e-01);
INSERT INTO "metric" VALUES(1,'mem_util',NULL,0.0);
INSERT INTO "metric" VALUES(6,'gpu_util',0.1,NULL);
INSERT INTO "metric" VALUES(6,'ipc',1.5,3.00000000000000044408e-01);
INSERT INTO "metric" VALUES(6,'mem_util',NULL,0.0);
CREATE TABLE mode (
        sequence INTEGER PRIMARY KEY REFERENCES measurement,
        mode TEXT NOT NULL) STRICT;
INSERT INTO "mode" VALUES(5,'time_sliced');
CREATE TABLE profile (
        sequence INTEGER PRIMARY KEY REFERENCES record,
        workload TEXT NOT NULL,
        gpu_model TEXT NOT NULL,
        share INTEGER,
        family TEXT,
        workers INTEGER NOT NULL,
        batch_size INTEGER,
        throughput REAL,
        power_w REAL,
        memory_mib REAL,
        memory_mean_mib REAL,
        duration_s REAL,
        source TEXT,
        date TEXT) STRICT;
INSERT INTO "profile" VALUES(1,'lm é','V100',40,'transformer',2,32,3.33333333333333314829e-01,212.0,0.0,1000.5,1.0e-09,'dovetail measure','2026-11-21T10:00:00+02:00');
INSERT INTO "profile" VALUES(2,'b','V100',NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
INSERT INTO "profile" VALUES(6,'lm é','V100',NULL,'transformer',2,32,3.33333333333333314829e-01,212.0,0.0,1000.5,1.0e-09,'dovetail measure','2026-11-21T10:00:00+02:00');
INSERT INTO "profile" VALUES(7,'b','V100',NULL,NULL,1,NULL,NULL,NULL,NULL,NULL,NULL,NULL,NULL);
CREATE TABLE record (
        sequence INTEGER PRIMARY KEY,
        recorded TEXT NOT NULL) STRICT;
INSERT INTO "record" VALUES(1,'2026-11-28T12:00:01.123456+00:00');
INSERT INTO "record" VALUES(2,'2026-11-28T12:00:01.123456+00:00');
INSERT INTO "record" VALUES(3,'2026-11-28T12:00:01.123456+00:00');
INSERT INTO "record" VALUES(4,'2026-11-28T12:00:01.123456+00:00');
INSERT INTO "record" VALUES(5,'2026-11-28T12:00:01.123456+00:00');
INSERT INTO "record" VALUES(6,'2026-11-28T12:00:03.123456+00:00');
INSERT INTO "record" VALUES(7,'2026-11-28T12:00:03.123456+00:00');
INSERT INTO "record" VALUES(8,'2026-11-28T12:00:03.123456+00:00');
INSERT INTO "record" VALUES(9,'2026-11-28T12:00:03.123456+00:00');
INSERT INTO "record" VALUES(10,'2026-11-28T12:00:03.123456+00:00');
CREATE TABLE tail (
        sequence INTEGER NOT NULL,
        position INTEGER NOT NULL,
        p99 REAL NOT NULL,
        PRIMARY KEY (sequence, position),
        FOREIGN KEY (sequence, position) REFERENCES member) STRICT, WITHOUT ROWID;
INSERT INTO "tail" VALUES(3,1,1.8);
CREATE TRIGGER record_UPDATE BEFORE UPDATE ON record BEGIN SELECT RAISE(ABORT, 'record: a repository is only appended to'); END;
CREATE TRIGGER record_DELETE BEFORE DELETE ON record BEGIN SELECT RAISE(ABORT, 'record: a repository is only appended to'); END;
CREATE TRIGGER record_REPLACE BEFORE INSERT ON record WHEN EXISTS (SELECT 1 FROM record WHERE sequence = NEW.sequence) BEGIN SELECT RAISE(ABORT, 'record: a repository is only appended to'); END;
CREATE TRIGGER profile_UPDATE BEFORE UPDATE ON profile BEGIN SELECT RAISE(ABORT, 'profile: a repository is only appended to'); END;
CREATE TRIGGER profile_DELETE BEFORE DELETE ON profile BEGIN SELECT RAISE(ABORT, 'profile: a repository is only appended to'); END;
CREATE TRIGGER profile_REPLACE BEFORE INSERT ON profile WHEN EXISTS (SELECT 1 FROM profile WHERE sequence = NEW.sequence) BEGIN SELECT RAISE(ABORT, 'profile: a repository is only appended to'); END;
CREATE TRIGGER metric_UPDATE BEFORE UPDATE ON metric BEGIN SELECT RAISE(ABORT, 'metric: a repository is only appended to'); END;
CREATE TRIGGER metric_DELETE BEFORE DELETE ON metric BEGIN SELECT RAISE(ABORT, 'metric: a repository is only appended to'); END;
CREATE TRIGGER metric_REPLACE BEFORE INSERT ON metric WHEN EXISTS (SELECT 1 FROM metric WHERE sequence = NEW.sequence AND name = NEW.name) BEGIN SELECT RAISE(ABORT, 'metric: a repository is only appended to'); END;
CREATE TRIGGER measurement_UPDATE BEFORE UPDATE ON measurement BEGIN SELECT RAISE(ABORT, 'measurement: a repository is only appended to'); END;
CREATE TRIGGER measurement_DELETE BEFORE DELETE ON measurement BEGIN SELECT RAISE(ABORT, 'measurement: a repository is only appended to'); END;
CREATE TRIGGER measurement_REPLACE BEFORE INSERT ON measurement WHEN EXISTS (SELECT 1 FROM measurement WHERE sequence = NEW.sequence) BEGIN SELECT RAISE(ABORT, 'measurement: a repository is only appended to'); END;
CREATE TRIGGER member_UPDATE BEFORE UPDATE ON member BEGIN SELECT RAISE(ABORT, 'member: a repository is only appended to'); END;
CREATE TRIGGER member_DELETE BEFORE DELETE ON member BEGIN SELECT RAISE(ABORT, 'member: a repository is only appended to'); END;
CREATE TRIGGER member_REPLACE BEFORE INSERT ON member WHEN EXISTS (SELECT 1 FROM member WHERE sequence = NEW.sequence AND position = NEW.position) BEGIN SELECT RAISE(ABORT, 'member: a repository is only appended to'); END;
CREATE TRIGGER tail_UPDATE BEFORE UPDATE ON tail BEGIN SELECT RAISE(ABORT, 'tail: a repository is only appended to'); END;
CREATE TRIGGER tail_DELETE BEFORE DELETE ON tail BEGIN SELECT RAISE(ABORT, 'tail: a repository is only appended to'); END;
CREATE TRIGGER tail_REPLACE BEFORE INSERT ON tail WHEN EXISTS (SELECT 1 FROM tail WHERE sequence = NEW.sequence AND position = NEW.position) BEGIN SELECT RAISE(ABORT, 'tail: a repository is only appended to'); END;
CREATE TRIGGER mode_UPDATE BEFORE UPDATE ON mode BEGIN SELECT RAISE(ABORT, 'mode: a repository is only appended to'); END;
CREATE TRIGGER mode_DELETE BEFORE DELETE ON mode BEGIN SELECT RAISE(ABORT, 'mode: a repository is only appended to'); END;
CREATE TRIGGER mode_REPLACE BEFORE INSERT ON mode WHEN EXISTS (SELECT 1 FROM mode WHERE sequence = NEW.sequence) BEGIN SELECT RAISE(ABORT, 'mode: a repository is only appended to'); END;
CREATE TRIGGER latency_UPDATE BEFORE UPDATE ON latency BEGIN SELECT RAISE(ABORT, 'latency: a repository is only appended to'); END;
CREATE TRIGGER latency_DELETE BEFORE DELETE ON latency BEGIN SELECT RAISE(ABORT, 'latency: a repository is only appended to'); END;
CREATE TRIGGER latency_REPLACE BEFORE INSERT ON latency WHEN EXISTS (SELECT 1 FROM latency WHERE sequence = NEW.sequence) BEGIN SELECT RAISE(ABORT, 'latency: a repository is only appended to'); END;
CREATE TRIGGER condition_UPDATE BEFORE UPDATE ON condition BEGIN SELECT RAISE(ABORT, 'condition: a repository is only appended to'); END;
CREATE TRIGGER condition_DELETE BEFORE DELETE ON condition BEGIN SELECT RAISE(ABORT, 'condition: a repository is only appended to'); END;
CREATE TRIGGER condition_REPLACE BEFORE INSERT ON condition WHEN EXISTS (SELECT 1 FROM condition WHERE sequence = NEW.sequence) BEGIN SELECT RAISE(ABORT, 'condition: a repository is only appended to'); END;
CREATE TRIGGER evidence_UPDATE BEFORE UPDATE ON evidence BEGIN SELECT RAISE(ABORT, 'evidence: a repository is only appended to'); END;
CREATE TRIGGER evidence_DELETE BEFORE DELETE ON evidence BEGIN SELECT RAISE(ABORT, 'evidence: a repository is only appended to'); END;
CREATE TRIGGER evidence_REPLACE BEFORE INSERT ON evidence WHEN EXISTS (SELECT 1 FROM evidence WHERE sequence = NEW.sequence) BEGIN SELECT RAISE(ABORT, 'evidence: a repository is only appended to'); END;
COMMIT;
