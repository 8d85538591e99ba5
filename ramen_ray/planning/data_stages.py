"""Needs of the stages before training: imports, checks, description, preparation, walks."""

from ramen_ray.data.tasks import ROWS_HERE
from ramen_ray.planning import arrays
from ramen_ray.planning.costs import cost
from ramen_ray.planning.machines import Cluster
from ramen_ray.planning.needs import Need
from ramen_ray.planning.sizes import Sizes

HASHES_OF_A_NODE = 32  # of its text, of its id, and the order of both
EDGE_ROW, TEXT_ROW = 41, 60  # bytes of a row in Ray's object store, a text without its tokens
EDGE_PART, TEXT_PART = 20, 32  # the same in a part's file
TOKEN_ROW = 4
COUNTED_ANCHOR = 16  # bytes, while a walk's graph is made
SAMPLED_TEXTS = 100_000  # of a table, whose tokens a description counts
KEYS = 3 * 8 * 2**24  # that validation compares at once


def import_clicks(sizes: Sizes, cluster: Cluster) -> Need:
    """Import tables of queries, ads and clicks."""
    rows = sizes.nodes + sizes.clicks
    disk = cost("dataset_text_bytes") * sizes.nodes + 8 * sizes.clicks
    return Need(
        "import of clicks",
        cpu_s=cost("job_start_s") + rows * cost("import_row_s"),
        memory=cost("ray_bytes") + HASHES_OF_A_NODE * max(sizes.queries, sizes.ads),
        disk=disk,
        scratch=disk,
        network=cluster.over_network(3 * disk),
    )


def import_edges(sizes: Sizes, cluster: Cluster) -> Need:
    """Import both sides' edges; one task indexes the nodes' names, for which the others wait."""
    disk = cost("dataset_edge_bytes") * sizes.edges + cost("dataset_text_bytes") * sizes.anchors
    index = sizes.nodes * cost("edges_index_node_s")
    work = sizes.texts * cost("edges_text_s") + sizes.edges * cost("edges_edge_s")
    return Need(
        "import of edges",
        cpu_s=cost("job_start_s") + work,
        serial_s=index,
        memory=cost("ray_bytes") + 2 * (HASHES_OF_A_NODE + 8) * sizes.nodes,
        disk=disk,
        scratch=EDGE_PART * sizes.edges,
        network=cluster.over_network(2 * disk + 2 * EDGE_PART * sizes.edges),
    )


def validate(sizes: Sizes, cluster: Cluster) -> Need:
    """Validate the dataset directory, a large one in tasks; one of them looks for leaks."""
    seconds, in_tasks = _validation_s(sizes), _runs_in_tasks(sizes)
    return Need(
        "validation",
        cpu_s=in_tasks * (cost("job_start_s") + seconds),
        longest_s=in_tasks * cost("leaks_share") * seconds,
        serial_s=(not in_tasks) * seconds,
        memory=in_tasks * cost("ray_bytes") + KEYS + sum(_checked_bytes(sizes)),
        network=cluster.over_network(_dataset_bytes(sizes)),
    )


def describe(sizes: Sizes, cluster: Cluster) -> Need:
    """Validate and describe the dataset directory; a task counts, others sample texts."""
    validation, in_tasks = validate(sizes, cluster), _runs_in_tasks(sizes)
    counted = (sizes.texts + sizes.edges) * cost("describe_row_s")
    tables = (sizes.queries, sizes.ads, *(graph.anchors for graph in sizes.graphs))
    sampled = sum(min(rows, SAMPLED_TEXTS) for rows in tables) * cost("describe_sampled_text_s")
    counts = 8 * (2 * sizes.queries + 4 * sizes.ads + 2 * sizes.anchors)
    return Need(
        "description",
        cpu_s=validation.cpu_s + in_tasks * (counted + sampled),
        longest_s=validation.longest_s + in_tasks * counted,
        serial_s=validation.serial_s + (not in_tasks) * (counted + sampled),
        memory=validation.memory + max(counts + 8 * sizes.texts - sum(_checked_bytes(sizes)), 0),
        network=cluster.over_network(2 * _dataset_bytes(sizes)),
    )


def prepare(sizes: Sizes, cluster: Cluster) -> Need:
    """Check, tokenise and sort side by side; then one task joins.

    Of the checks, one task does all or, if these are many, looks for leaks.
    """
    total = sizes.texts * cost("prepare_text_s") + sizes.edges * cost("prepare_edge_s")
    checked = _validation_s(sizes) * (cost("leaks_share") if _runs_in_tasks(sizes) else 1)
    joined = sizes.texts * cost("join_text_s") + sizes.edges * cost("join_edge_s")
    tokens = TOKEN_ROW * sizes.tokens * sizes.texts
    parts = TEXT_PART * sizes.texts + EDGE_PART * sizes.edges + 12 * sizes.clicks + tokens
    rows = TEXT_ROW * sizes.texts + EDGE_ROW * sizes.edges + 12 * sizes.clicks + tokens
    prepared = arrays.prepared_bytes(sizes)
    return Need(
        "preparation",
        cpu_s=cost("job_start_s") + cost("prepare_start_s") + total,
        longest_s=checked,
        serial_s=joined,
        memory=cost("ray_bytes") + KEYS + max(_checked_bytes(sizes)) + 16 * sizes.texts,
        disk=prepared,
        scratch=parts + rows,
        network=cluster.over_network(2 * _dataset_bytes(sizes) + rows + 2 * parts + prepared),
    )


def walk(sizes: Sizes, cluster: Cluster, num_hops: int, top_k: int) -> Need:
    """Walk from every node of both sides of every set; every machine maps the whole graph.

    A hop reads a graph at random, so that it takes longer if the caches do not hold the graph.
    """
    sides = sizes.sides
    graphs = [arrays.walk_graph_bytes(nodes, anchors, edges) for nodes, edges, anchors in sides]
    mapped = sum(graphs)
    missed = [max(1 - cost("cache_bytes") / graph, 0) for graph in graphs]
    hops_s = num_hops * sum(
        nodes * (cost("walk_hop_s") + share * cost("walk_hop_missed_s"))
        for (nodes, _, _), share in zip(sides, missed, strict=True)
    )
    walked = arrays.walked_bytes(sizes, top_k)
    return Need(
        "walks",
        cpu_s=cost("walk_start_s") + hops_s,
        serial_s=sizes.edges * cost("walk_edge_s"),
        memory=cost("ray_bytes") + COUNTED_ANCHOR * sum(anchors for _, _, anchors in sides),
        mapped=mapped,
        disk=walked,
        scratch=mapped,
        network=cluster.over_network(
            arrays.prepared_bytes(sizes) + mapped * cluster.count + walked
        ),
    )


def co_session(events: int, cluster: Cluster) -> Need:
    """Make co-session graphs of a log, whose events and pairs Ray's tasks share."""
    return Need(
        "co-session graphs",
        cpu_s=cost("job_start_s") + events * cost("session_event_s"),
        memory=cost("ray_bytes") + cost("session_event_bytes") * events,
        scratch=EDGE_ROW * events,
        network=cluster.over_network(2 * EDGE_ROW * events),
    )


def _runs_in_tasks(sizes: Sizes) -> bool:
    """Say whether checks are tasks of the cluster's, not one process's."""
    return sizes.texts + sizes.edges > ROWS_HERE


def _validation_s(sizes: Sizes) -> float:
    """Processor seconds of a validation."""
    return sizes.texts * cost("validate_text_s") + sizes.edges * cost("validate_edge_s")


def _checked_bytes(sizes: Sizes) -> tuple[float, ...]:
    """Hashes of texts that the largest checks compare: leaks, spellings, and queries' splits."""
    return 8 * sizes.texts, 64 * sizes.ads, 8 * sizes.queries


def _dataset_bytes(sizes: Sizes) -> float:
    texts = cost("dataset_text_bytes") * sizes.texts
    return texts + cost("dataset_edge_bytes") * sizes.edges + 8 * sizes.clicks
