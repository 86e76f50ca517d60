"""No process of the cluster runs a file of the working directory that has a library's name."""

import pytest

from tests.test_working_directory import imports_all_that_it_needs

PROGRAMS = ("dovetail.cluster.ray_driver", "dovetail.cluster.slurm.programs")
"""What `module_command` is asked to run by the cluster."""


@pytest.mark.usefixtures("shadowed")
@pytest.mark.parametrize("program", PROGRAMS)
def test_a_program_of_the_cluster(program):
    imports_all_that_it_needs(program)
