"""Made-up traces of each format, random jobs, and the command that replays them."""

import json

import pytest

from minicluster_hub.cluster.__main__ import main
from minicluster_hub.simulator.model import Model
from minicluster_hub.simulator.traces import TraceUnknown, read
from minicluster_hub.simulator.traces.synthetic import Lab, draw
from minicluster_hub.simulator.workload import GRADIENT_BYTES, Shape, workload

from ... import messages

LAB12 = "job_id,user,submit_s,duration_s,num_gpus,walltime_s\n0,u4,7.5,100.0,4,150.0\n1,u2,8.0,10.0,1,20\n"


@pytest.fixture
def made(tmp_path):
    """Write a trace and further files, by their paths from its folder; return the trace's path."""

    def write(content, files=None):
        trace = tmp_path / "traces" / "trace"
        trace.parent.mkdir(exist_ok=True)
        for name, text in (files or {}).items():
            (trace.parent / name).parent.mkdir(parents=True, exist_ok=True)
            (trace.parent / name).write_text(text)
        trace.write_text(content)
        return trace

    return write


def test_a_labs_trace(made):
    first, second = read(made(LAB12))
    assert (first.job_id, first.owner, first.slots, first.time_limit_s) == (0, "u4", 4, 150.0)
    assert (second.submitted_at, second.duration_s) == (8.0, 10.0)


def test_phillys_times_count_from_its_first_job_and_empty_jobs_are_left_out(made):
    columns = "timestamp,duration,num_gpus,gpu_time,cluster\n"
    rows = (
        "2017-10-02 00:00:10,66.0,1,66.0,vc1",
        "2017-10-01 23:59:50,9.0,8,72.0,vc2",
        "2017-10-01 00:00:00,0,1,0,vc1",
    )
    late, early = read(made(columns + "\n".join(rows) + "\n\n"))
    assert (late.submitted_at, early.submitted_at) == (20.0, 0.0)
    assert (early.owner, early.slots, early.duration_s) == ("vc2", 8, 9.0)


def test_muris_times_are_milliseconds(made):
    columns = (
        "job_id,num_gpu,submit_time,iterations,model_name,batch_size,duration,interval,iteration_time,"
        "resource_time_0,resource_time_1,resource_time_2,priority\n"
    )
    (job,) = read(made(columns + "7,8,1534000,1463,vgg16,16,281000,28000,214,82,75,66,1\n"))
    assert (job.submitted_at, job.duration_s, job.step_s, job.slots) == (1534.0, 281.0, 0.214, 8)
    assert job.gradient_bytes == pytest.approx(138.4e6 * 4)


def test_tiresias_times_are_seconds(made):
    columns = "job_id,num_gpu,submit_time,iterations,model_name,duration,interval\n"
    (job,) = read(made(columns + "1,8,30,50,unheard_of,150,23\n"))
    assert (job.submitted_at, job.duration_s, job.step_s) == (30.0, 150.0, 3.0)
    assert job.gradient_bytes == GRADIENT_BYTES


def test_gavels_durations_follow_from_measured_speeds(made):
    speeds = {
        "v100": {"('LM (batch size 5)', 1)": {"null": 10.0}, "('LM (batch size 5)', 4)": {"null": 20.0}}
    }
    beside = {"simulation_throughputs.json": json.dumps(speeds)}
    simulated = "LM (batch size 5)\tcd x && run\t--steps\t1\t1000\t50.5\t4\n"
    real = "LM (batch size 5)\trun\tlanguage\t--steps\t1\t1000\t8\t1\t-1.000000\t3\n"
    (first, second) = (read(made(line, beside))[0] for line in (simulated, real))
    assert (first.submitted_at, first.slots, first.duration_s, first.step_s) == (50.5, 4, 50.0, 0.05)
    assert (second.submitted_at, second.slots, second.duration_s) == (3.0, 8, 25.0), "8 are taken as twice 4"


def pollux(made, replicas, batch):
    """A step takes 1 s, plus 0.01 s per image on a GPU, plus 1 s between GPUs, or 3 s between nodes."""
    local = (10, 100)
    rows = [
        f"{placement},{size},{1 + 0.01 * size + exchange},{exchange}"
        for placement, exchange in (("1", 0), ("2", 1), ("4", 1), ("11", 3), ("44", 3))
        for size in local
    ]
    folder = "../profiles/toy"
    validation = "progress,iteration,metric,grad_sqr,grad_var\n1,{},0,0,0\n2,{},0,0,0\n"
    files = {
        f"{folder}/placements.csv": "placement,local_bsz,step_time,sync_time\n" + "\n".join(rows),
        f"{folder}/scalability.csv": "num_nodes,num_replicas,local_bsz,step_time,sync_time\n",
        f"{folder}/validation-100.csv": validation.format(500, 1000),
        f"{folder}/validation-400.csv": validation.format(200, 400),
    }
    columns = "name,time,application,num_replicas,batch_size\n"
    return read(made(f"{columns}toy-0,60,toy,{replicas},{batch}\n", files))[0]


def test_polluxs_durations_follow_from_its_profiles(made):
    job = pollux(made, 1, 100)
    assert (job.submitted_at, job.slots) == (60.0, 1)
    assert job.duration_s == pytest.approx(1000 * 2)
    assert job.speeds.rate(4, 1) == pytest.approx(2 / (1.25 + 1))
    assert job.speeds.rate(4, 2) == pytest.approx(2 / (1.25 + 3))
    assert pollux(made, 4, 400).duration_s == pytest.approx(400 * 3)


def test_what_does_not_fit_into_a_gpu_is_done_one_after_another(made):
    assert pollux(made, 1, 400).duration_s == pytest.approx(400 * 4 * 2)


def test_under_elastic_policies_jobs_take_the_batch_size_that_suits_them_best(made):
    job = pollux(made, 4, 100)
    assert job.elastic_speeds.rate(4, 1) == pytest.approx(1000 * 2.25 / (400 * 3))
    (adapts,) = workload([job], Shape(4, 4), Model(), elastic=True)
    (keeps,) = workload([job], Shape(4, 4), Model(adapts=False), elastic=True)
    assert (adapts.view.max_replicas, keeps.view.max_replicas) == (16, 10), (
        "each GPU has at least ten pictures"
    )
    assert (adapts.speeds, keeps.speeds) == (job.elastic_speeds, job.speeds)


def test_other_files_are_refused_with_what_is_known(made):
    with pytest.raises(TraceUnknown, match=r"'a,b'; known are gavel and lab12, philly"):
        read(made("a,b\n1,2\n"))


def test_the_same_seed_draws_the_same_jobs_of_that_load():
    lab = Lab(jobs=2000, load=0.7)
    jobs = draw(lab, 5)
    assert jobs == draw(lab, 5) != draw(lab, 6)
    assert all(lab.shortest_s <= job.duration_s <= lab.longest_s for job in jobs)
    assert all(1.0 <= job.time_limit_s / job.duration_s <= 5.0 for job in jobs)
    asked = sum(job.slots * job.duration_s for job in jobs)
    assert asked / (lab.slots * jobs[-1].submitted_at) == pytest.approx(0.7, rel=0.1)
    count = {name: sum(job.owner == name for job in jobs) for name in ("u0", "u1", "u7")}
    assert count["u0"] / count["u1"] == pytest.approx(2, rel=0.3)
    assert count["u0"] / count["u7"] == pytest.approx(8, rel=0.4)


def test_a_burst_comes_at_once_and_no_job_is_larger_than_the_cluster():
    jobs = draw(Lab(jobs=200, slots=4, load=0), 1)
    assert {job.submitted_at for job in jobs} == {0.0}
    assert {job.slots for job in jobs} == {1, 2, 4}


def test_the_command_prints_a_row_for_each_and_what_it_assumed(tmp_path, capsys):
    trace = tmp_path / "mine.csv"
    trace.write_text(LAB12)
    arguments = ["simulate", "--trace", str(trace), "--policy", "fifo,las", "--placement", "pack,spread"]
    assert main([*arguments, "--restart-s", "12", "--nodes", "2", "--gpus", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "2 nodes with 2 GPUs each; 2 jobs"
    rows = [line.split()[:3] for line in lines if line.startswith(("fifo", "las"))]
    assert rows[0] == ["fifo", "pack", "1.00"]
    assert [row[:2] for row in rows] == [
        ["fifo", "pack"],
        ["fifo", "spread"],
        ["las", "pack"],
        ["las", "spread"],
    ]
    assert any(line.startswith("a change of slots costs 12 s") for line in lines)


def test_a_policy_of_ones_own_is_named_by_its_file(tmp_path, capsys):
    ours = tmp_path / "shortest.py"
    ours.write_text(
        "from minicluster_hub.scheduling.base import Grant, Plan\n\n"
        "def plan(snapshot):\n"
        "    running = [Grant(job.job_id, job.replicas) for job in snapshot.running]\n"
        "    short = sorted(snapshot.waiting, key=lambda job: job.time_limit_s)\n"
        "    waiting = (Grant(job.job_id, job.min_replicas) for job in short)\n"
        "    return Plan((*running, *waiting), head_blocks=False)\n"
    )
    arguments = ["simulate", "--jobs", "60", "--seeds", "0", "--policy"]
    assert main([*arguments, f"fifo,{ours}"]) == 0
    (row,) = [line.split() for line in capsys.readouterr().out.splitlines() if line.startswith(str(ours))]
    assert row[1] == "pack" and float(row[2]) > 1.5, "shortest first is better than FIFO"
    ours.write_text("def plan(snapshot):\n    return 7\n")
    assert main([*arguments, str(ours)]) == 1
    assert f"plan() returned 7, {messages.WHICH_IS_NO_PLAN}" in capsys.readouterr().err
    ours.write_text("x = 1\n")
    assert main([*arguments, str(ours)]) == 1
    assert f"{ours}: it {messages.NO_FUNCTION_PLAN}" in capsys.readouterr().err
    assert main([*arguments, str(tmp_path / "none.py")]) == 1
    assert "none.py" in capsys.readouterr().err


def test_the_command_tells_which_jobs_are_left_out(tmp_path, capsys):
    trace = tmp_path / "mine.csv"
    trace.write_text(LAB12)
    assert main(["simulate", "--trace", str(trace), "--nodes", "1", "--gpus", "2"]) == 0
    text = capsys.readouterr().out
    assert "1 of them need more GPUs" in text and "left out" in text


def test_the_command_draws_jobs_and_a_picture(tmp_path, capsys):
    picture = tmp_path / "compared.svg"
    pytest.importorskip("matplotlib", reason="the picture needs it")
    assert main(["simulate", "--jobs", "12", "--seeds", "0,1", "--plot", str(picture)]) == 0
    assert "24 jobs in 2 traces" in capsys.readouterr().out
    assert "<svg" in picture.read_text()


def test_what_the_command_cannot_do_it_says(tmp_path, capsys):
    assert main(["simulate", "--trace", str(tmp_path / "none.csv")]) == 1
    assert "none.csv" in capsys.readouterr().err
    with pytest.raises(SystemExit):
        main(["simulate", "--policy", "lottery"])
    assert "no 'lottery'; there are: all, fifo" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("job_id,user\n1,ada\n", "begins with job_id,user,submit_s,duration_s,num_gpus,walltime_s"),
        (LAB12.partition("\n")[0] + "\n1,ada,0,ten,1,5\n", "could not convert string to float: 'ten'"),
        (LAB12.partition("\n")[0] + "\n1,ada,0,10,1,\n", "could not convert string to float: ''"),
        (LAB12.partition("\n")[0] + "\n", "without a job that fits on these nodes"),
    ],
)
def test_the_command_says_what_is_wrong_with_a_trace(tmp_path, capsys, text, told):
    trace = tmp_path / "mine.csv"
    trace.write_text(text)
    assert main(["simulate", "--trace", str(trace), "--nodes", "1", "--gpus", "2"]) == 1
    assert told in capsys.readouterr().err


def test_the_command_says_that_a_trace_is_no_text(tmp_path, capsys):
    trace = tmp_path / "mine.csv"
    trace.write_bytes(b"\xff\xfe")
    assert main(["simulate", "--trace", str(trace)]) == 1
    assert "mine.csv is not text in UTF-8" in capsys.readouterr().err
