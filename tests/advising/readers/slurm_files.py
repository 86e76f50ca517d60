"""Output of Slurm's commands in the shapes of real ones, with made-up values."""

NODES = """\
NodeName=n1 Arch=x86_64 CoresPerSocket=1
   CPUAlloc=3 CPUEfctv=8 CPUTot=8 CPULoad=11.73
   AvailableFeatures=ib
   ActiveFeatures=ib
   Gres=gpu:a100:2(S:0-1),nvme:1
   NodeAddr=10.0.0.1 NodeHostName=n1 Version=22.05.8
   OS=Linux 6.1.0 #1 SMP
   State=MIXED ThreadsPerCore=1 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=p
   CfgTRES=cpu=8,mem=8000M,billing=8
   Comment=Gres=gpu:h100:8 State=DOWN

NodeName=n2 Arch=x86_64 CoresPerSocket=1
   Gres=gpu:2,gpu:v100:1
   State=IDLE+DRAIN ThreadsPerCore=1

NodeName=n3 Arch=x86_64 CoresPerSocket=1
   Gres=gpu:a100:4
   State=DOWN* ThreadsPerCore=1

NodeName=n4 Arch=x86_64 CoresPerSocket=1
   Gres=(null)
   State=IDLE ThreadsPerCore=1

NodeName=n5 Arch=x86_64 CoresPerSocket=1
   Gres=gpu:a100_1g.10gb:7,gpu:a100:1
   State=ALLOCATED ThreadsPerCore=1
"""

JOBS = """\
JobId=1 JobName=two words
   UserId=ann(1000) GroupId=ann(1000) MCS_label=N/A
   Priority=4294901759 Nice=0 Account=(null) QOS=(null)
   JobState=RUNNING Reason=None Dependency=(null)
   RunTime=00:00:06 TimeLimit=365-00:00:00 TimeMin=N/A
   SubmitTime=2026-08-11T10:00:00 EligibleTime=2026-08-11T10:00:00
   StartTime=2026-08-11T10:00:10 EndTime=2027-08-11T10:00:10 Deadline=N/A
   NodeList=n[1-3]
   NumNodes=3 NumCPUs=2 NumTasks=2 CPUs/Task=1 ReqB:S:C:T=0:0:*:*
   TRES=cpu=2,node=3,billing=2
   JOB_GRES=gpu:a100:6
     Nodes=n[1-2] CPU_IDs=1 Mem=0 GRES=gpu:a100:2(IDX:0-1)
     Nodes=n3 CPU_IDs=0 Mem=0 GRES=gpu:a100:2(IDX:1,3)
   Command=(null)
   WorkDir=/home/ann
   TresPerNode=gres:gpu:2


JobId=9 ArrayJobId=3 ArrayTaskId=2-4%1 ArrayTaskThrottle=1 JobName=arr|x
   UserId=bob(1001) GroupId=bob(1001) MCS_label=N/A
   JobState=PENDING Reason=JobArrayTaskLimit Dependency=(null)
   SubmitTime=2026-08-11T10:00:00 EligibleTime=Unknown
   StartTime=Unknown EndTime=Unknown Deadline=N/A
   NodeList=
   NumNodes=2-2 NumCPUs=2 NumTasks=2 CPUs/Task=1
   TRES=cpu=1,mem=8000M,node=1,billing=1
   TresPerNode=gres:gpu:v100:4

JobId=7 HetJobId=6 HetJobOffset=1 JobName=het
   HetJobIdSet=6-7
   UserId=bob(1001) GroupId=bob(1001) MCS_label=N/A
   JobState=PENDING Reason=Resources Dependency=(null)
   SubmitTime=2026-08-11T10:00:00 EligibleTime=2026-08-11T10:00:00
   StartTime=2026-08-12T10:00:00 EndTime=Unknown Deadline=N/A
   NodeList=
   NumNodes=1 NumCPUs=8 NumTasks=8 CPUs/Task=1
   ReqTRES=cpu=8,mem=8000M,node=1,billing=1,gres/gpu=8
   AllocTRES=(null)
   TresPerTask=gres:gpu:1

JobId=8 JobName=cpu
   UserId=bob(1001) GroupId=bob(1001) MCS_label=N/A
   JobState=RUNNING Reason=None Dependency=(null)
   SubmitTime=2026-08-11T10:00:00 StartTime=2026-08-11T10:00:10 EndTime=Unknown
   NodeList=n1
   NumNodes=1 NumCPUs=1 NumTasks=1 CPUs/Task=1
   TRES=cpu=1,node=1,billing=1
   JOB_GRES=(null)
"""

QUEUE = """\
JOBID|USER|NAME|STATE|TRES_PER_NODE|NODES|START_TIME|SUBMIT_TIME|END_TIME|NODELIST|REASON
3_[2-4%1]|bob|arr|x|PENDING|gres:gpu:v100:4|2|N/A|2026-08-11T10:00:00|N/A||JobArrayTaskLimit
7+1|bob|het|PENDING|gres:gpu:1|1|2026-08-12T10:00:00|2026-08-11T10:00:00|NONE||Resources
1|ann|two words|RUNNING|gres:gpu:2|3|2026-08-11T10:00:10|2026-08-11T10:00:00|NONE|n[1-3]|None
8|bob|cpu|RUNNING|N/A|1|2026-08-11T10:00:10|2026-08-11T10:00:00|NONE|n1|None
"""

SUBMITTED_S, STARTED_S = 1786442400, 1786442410


def _number(value):
    return {"set": value is not None, "infinite": False, "number": value or 0}


def squeue_document(newer):
    """Return the jobs of ``JOBS`` as ``squeue --json`` has them, of 23.x or of 22.05."""
    form = _number if newer else (lambda value: value or 0)

    def job(**fields):
        return {
            "job_id": fields.pop("job_id"),
            "job_state": [fields.pop("state")] if newer else fields.pop("state"),
            "array_job_id": form(fields.pop("array", None)),
            "array_task_id": _number(None) if newer else None,
            "het_job_id": form(fields.pop("het", None)),
            "het_job_offset": form(fields.pop("offset", None)),
            "node_count": form(fields.pop("node_count")),
            "tasks": form(fields.pop("tasks")),
            "submit_time": form(SUBMITTED_S),
            "start_time": form(fields.pop("start", None)),
            "end_time": form(None),
            **{f"tres_per_{what}": fields.pop(f"tres_per_{what}", "") for what in _UNITS},
            **fields,
        }

    return {
        "meta": {"Slurm": {"version": {"major": 22}}},
        "jobs": [
            job(
                **{"job_id": 1, "state": "RUNNING", "user_name": "ann", "name": "two words"},
                **{"node_count": 3, "tasks": 2, "start": STARTED_S, "nodes": "n[1-3]"},
                gres_detail=["gpu:a100:2(IDX:0-1)", "gpu:a100:2(IDX:0-1)", "gpu:a100:2(IDX:1,3)"],
                tres_per_node="gres/gpu:2" if newer else "gres:gpu:2",
            ),
            job(
                **{"job_id": 9, "state": "PENDING", "user_name": "bob", "name": "arr|x"},
                **{"node_count": 2, "tasks": 2, "array": 3, "array_task_string": "2-4%1"},
                **{"nodes": "", "gres_detail": [], "state_reason": "JobArrayTaskLimit"},
                tres_per_node="gres/gpu:v100:4" if newer else "gres:gpu:v100:4",
            ),
            job(
                **{"job_id": 7, "state": "PENDING", "user_name": "bob", "name": "het"},
                **{"node_count": 1, "tasks": 8, "het": 6, "offset": 1, "nodes": ""},
                **{"gres_detail": [], "state_reason": "Resources", "tres_per_task": "gres:gpu:1"},
                tres_req_str="cpu=8,mem=8000M,node=1,billing=1,gres/gpu=8",
            ),
            job(
                **{"job_id": 8, "state": "RUNNING", "user_name": "bob", "name": "cpu"},
                **{"node_count": 1, "tasks": 1, "start": STARTED_S, "nodes": "n1"},
                **{"gres_detail": [], "tres_alloc_str": "cpu=1,node=1,billing=1"},
            ),
        ],
    }


_UNITS = ("job", "node", "task")
