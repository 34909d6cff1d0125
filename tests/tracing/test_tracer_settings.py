"""One tracer a process, on and off, and its settings."""

import threading

import pytest
from support.control import begun
from support.sessions import blocks

import gpusense
from gpusense._runtime import config
from gpusense._tracing import noop
from gpusense._tracing.tracer import Tracer


def test_one_tracer_a_process(tracer):
    assert gpusense.get_tracer() is gpusense.get_tracer() is tracer
    assert isinstance(tracer, Tracer)


def test_enable_and_disable(tracer):
    with gpusense.trace("before"):
        pass
    gpusense.disable()
    with gpusense.trace("while disabled") as block:
        gpusense.record_kernel("k", duration_ns=10**6)
    assert isinstance(block, noop.NoopBlock)
    assert set(blocks(gpusense.get_tracer())) == {"before"}
    assert gpusense.enable()
    with gpusense.trace("after"):
        pass
    assert set(blocks(gpusense.get_tracer())) == {"before", "after"}


def test_off_and_on_again_by_configuration(tracer):
    gpusense.configure(mode="off")
    with gpusense.trace("while off") as block:
        pass
    assert isinstance(block, noop.NoopBlock)
    gpusense.configure(mode="on")
    with gpusense.trace("after"):
        pass
    assert set(blocks(gpusense.get_tracer())) == {"after"}
    gpusense.disable()
    gpusense.configure(threshold_us=7)  # which is not to enable
    with gpusense.trace("while disabled"):
        pass
    assert set(blocks(gpusense.get_tracer())) == {"after"}


def test_threads_that_enable_at_once_make_one_tracer(tracer, monkeypatch):
    """The others went on capturing beside it, each with a thread of its own."""
    control = begun(monkeypatch)
    made, together = [], threading.Barrier(3)

    def live(*arguments, before=control._live):
        made.append(before(*arguments))
        threading.Event().wait(0.05)
        return made[-1]

    def enable():
        together.wait(10)
        assert gpusense.enable()

    monkeypatch.setattr(control, "_live", live)
    threads = [threading.Thread(target=enable) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(10)
    try:
        assert len(made) == 1
        assert gpusense.get_tracer() is made[0]
    finally:
        for one in made:
            one.close()
        tracer.close()


def test_a_signal_handler_that_configures_in_the_first_decision_leaves_a_tracer(tracer, monkeypatch):
    """None was active from then on, and every block raised AttributeError."""
    control = begun(monkeypatch)
    told = []

    def decided(before=control._decided):
        gpusense.configure(threshold_us=7)
        told.append(gpusense.enable())
        return before()

    monkeypatch.setattr(control, "_decided", decided)
    with gpusense.trace("first"):
        pass
    with gpusense.trace("second"):
        pass
    assert told == [False]
    assert gpusense.get_tracer().config.threshold_us == 7


def test_a_function_decorated_while_disabled_is_traced_after_enabling(tracer):
    gpusense.disable()

    @gpusense.trace("late", {"k": 1})
    def late():
        return 5

    assert late() == 5
    gpusense.enable()
    assert late() == 5
    assert blocks(gpusense.get_tracer())["late"].attributes == {"k": 1}


def test_reset(tracer):
    with gpusense.trace("old"):
        pass
    with gpusense.trace("open"):
        tracer.flush()
        gpusense.reset()
        gpusense.record_kernel("k", duration_ns=10**6)
    session = tracer.session()
    assert [block.name for block in session.blocks] == ["open"]
    assert [kernel.path for kernel in session.kernels] == [("open",)]


def test_configuration_errors_say_what_would_be_right(tracer):
    with pytest.raises(gpusense.ConfigurationError, match=r"known: .*threshold_us"):
        gpusense.configure(treshold_us=5)
    with pytest.raises(gpusense.ConfigurationError, match="0…1"):
        gpusense.configure(sample_rate=2)
    with pytest.raises(ValueError, match="must be a number"):
        gpusense.configure(threshold_us="fast")
    with pytest.raises(gpusense.ConfigurationError, match="'order' or 'exact'"):
        gpusense.configure(attribution="guessed")
    for wrong in ([1], {}, 5, "fast"):
        with pytest.raises(gpusense.ConfigurationError, match="counters must be"):
            gpusense.configure(counters=wrong)
    with pytest.raises(gpusense.BackendUnavailable, match="cupti"):
        gpusense.configure(backends=("cupti",), strict=True)
    with pytest.raises(gpusense.ConfigurationError, match="unknown backend 'cupty'; known: cuda, cupti"):
        gpusense.configure(backends=("cupty",))


@pytest.mark.parametrize(
    ("given", "found"),
    [(True, "auto"), (False, None), (None, None), ("on", "auto"), ("off", None), ("1kHz", "1kHz"), ("1000", "1kHz"),
     ("100Hz", "100Hz"), ("2.5khz", "2.5kHz"), ("auto", "auto"), ("", None)],
)  # fmt: skip
def test_counters_are_on_off_or_a_rate(given, found):
    assert config.check("counters", given) == found
    if isinstance(given, str):
        assert config.from_environment({"GPUSENSE_COUNTERS": given}) == ({"counters": found}, [])


@pytest.mark.parametrize("given", ["fast", "0Hz", "1MHz", "30kHz", 5, 1000.0, "-1kHz", "nan"])
def test_a_rate_that_cannot_be_is_refused(given):
    with pytest.raises(gpusense.ConfigurationError, match="rate"):
        config.check("counters", given)


def test_a_configure_that_raises_changes_nothing(tracer):
    gpusense.configure(threshold_us=7)
    with pytest.raises(gpusense.BackendUnavailable):
        gpusense.configure(backends=("cupti",), strict=True, threshold_us=3)
    after = gpusense.configure(sample_rate=1.0)
    assert (after.strict, after.backends, after.threshold_us) == (False, None, 7)


def test_the_environment_has_the_last_word_on_the_mode():
    layers = config.Layers()
    layers.application["mode"] = "on"
    for word, mode in (("auto", "auto"), ("off", "off"), ("on", "on"), ("", "on"), ("maybe", "on")):
        assert layers.resolve({"GPUSENSE": word}).mode == mode
    assert layers.resolve({}).mode == "on"


@pytest.mark.parametrize("word", ["maybe", "disabled", "2"])
def test_a_mode_that_there_is_not_is_told(word):
    found, problems = config.from_environment({"GPUSENSE": word, "GPUSENSE_BACKENDS": "cupti,nvmll"})
    assert found == {}
    assert problems == [
        f"GPUSENSE={word!r} is ignored: it must be off, auto or on",
        "GPUSENSE_BACKENDS='cupti,nvmll' is ignored: unknown backend 'nvmll'; known: "
        + ", ".join(config.BACKEND_NAMES)
        + ". Did you mean 'nvml'?",
    ]
    for known in ("", "auto", "OFF", " on ", "0", "true"):
        assert config.from_environment({"GPUSENSE": known}) == ({}, [])


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("threshold_us", "abc", "it must be a number"),
        ("overhead_budget", "some", "it must be a number"),
        ("hang_after", "5 s", "it must be a number"),
        ("buffers", "1e3", "it must be a whole number"),
        ("buffers", "9" * 5000, "it must be a whole number"),
        ("devices", "0,x", "it must be a whole number"),
        ("trace_all", "maybe", "it must be yes or no"),
        ("threshold_us", "nan", "threshold_us must be a number, not nan"),
    ],
)
def test_a_variable_that_cannot_be_read_is_told_in_a_sentence(name, text, why):
    variable = f"GPUSENSE_{name.upper()}"
    assert config.from_environment({variable: text}) == ({}, [f"{variable}={text!r} is ignored: {why}"])


@pytest.mark.parametrize("name", config.Settings._fields[1:])
def test_no_variable_shows_an_error_of_python(name):
    for text in ("abc", "", ",", "\x1b[2J", "-1", "0x10", "½"):
        _, problems = config.from_environment({f"GPUSENSE_{name.upper()}": text})
        assert not [said for said in problems if "convert" in said or "literal" in said or "invalid" in said]


@pytest.mark.parametrize("value", [float("inf"), float("-inf"), float("nan")])
@pytest.mark.parametrize("name", ["buffers", "max_records", "threshold_us"])
def test_a_setting_that_is_no_number(name, value):
    with pytest.raises(gpusense.ConfigurationError, match=name):
        config.check(name, value)


def test_environment_over_application_over_host(tracer, monkeypatch):
    assert gpusense.configure(defaults=True, threshold_us=1, buffers=8).threshold_us == 1
    assert gpusense.configure(threshold_us=2).threshold_us == 2
    assert gpusense.configure(defaults=True, threshold_us=3).threshold_us == 2
    monkeypatch.setenv("GPUSENSE_THRESHOLD_US", "7.5")
    monkeypatch.setenv("GPUSENSE_BUFFERS", "many")
    monkeypatch.setenv("GPUSENSE_ATTRIBUTION", " Exact")
    settings = gpusense.configure()
    assert (settings.threshold_us, settings.buffers, settings.attribution) == (7.5, 8, "exact")
