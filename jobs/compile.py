"""Make a retriever answer faster on CPUs.

Examples:
    python jobs/compile.py --model models:/NAME@champion
    python jobs/compile.py --model models:/NAME@challenger --int8

The encoder is compiled to ONNX; with --int8 it computes in 8-bit integers. The result needs ONNX
Runtime instead of torch. If it is faster and not measurably worse, it becomes a new version and
takes over the alias if one was given; jobs/promote.py --restore moves the alias back.
"""

from ramen_ray.command_line import ModelSettings, parse_settings, run_job
from ramen_ray.long_work import logged_progress
from ramen_ray.printed_commands import asking


class CompileSettings(ModelSettings):
    """Compile a retriever's encoder."""

    int8: bool = False
    """Compute in 8-bit integers: even faster, with slightly different scores."""


def main() -> None:
    """Compile, print how the two compare, and print the new retriever's URI."""
    settings = parse_settings(CompileSettings, __doc__)
    registry = settings.registry()
    with logged_progress("loading libraries"):
        from ramen_ray.orchestration.deploy.compile import compile_for_cpus
        from ramen_ray.reports.report_tables import difference_table, show
        from ramen_ray.tracking.registry import RegistryError
    output = settings.output.absolute()
    compiled = compile_for_cpus(registry, settings.model, settings.int8, output)
    show(difference_table(compiled.metrics, compiled.differences, ("compiled", "original")))
    print(
        f"one query: {compiled.milliseconds:.2f} ms, before {compiled.milliseconds_before:.2f} ms"
    )
    print(f"scores: differ by at most {compiled.score_difference:.1e}")
    if compiled.refusal:
        raise RegistryError(
            f"{compiled.model_uri} does not replace {settings.model}: {compiled.refusal}"
        )
    print(f"retriever: {compiled.model_uri}")
    print(f"next: {asking(compiled.model_uri, settings.output)}")


if __name__ == "__main__":
    run_job(main)
