-- Makes the tables of a dataset directory, for DuckDB, Spark and BigQuery.
-- It needs the functions and the table split_clicks of warehouse.md, and these tables:
--   catalogue   (ad, text)              all ads, clicked or not: your id and text
--   judgements  (query, ad, grade, source) how well ads answer, from 0 to 1
--   query_links (query, anchor, weight) the graph: edges of queries, by their texts
--   ad_links    (ad, anchor, weight)    the graph: edges of ads, by your ids
-- Rows of unknown ads and queries are left out.

CREATE TABLE ads AS
SELECT CAST(row_number() OVER (ORDER BY ad) - 1 AS BIGINT) AS ad_id, text, ad AS source_id
FROM (SELECT CAST(ad AS STRING) AS ad, min(text) AS text FROM catalogue GROUP BY ad) AS listed;

CREATE TABLE queries AS
SELECT split, CAST(row_number() OVER (PARTITION BY split ORDER BY text) - 1 AS BIGINT) AS query_id,
    text, ad_ids
FROM (
    SELECT split, query AS text, array_sort(array_agg(ad_id)) AS ad_ids
    FROM split_clicks JOIN ads ON ads.source_id = CAST(split_clicks.ad AS STRING)
    GROUP BY split, query
) AS clicked;

CREATE TABLE judged AS
SELECT split, query_id, ad_id, source, avg(grade) AS grade
FROM judgements
JOIN queries ON queries.text = judgements.query
JOIN ads ON ads.source_id = CAST(judgements.ad AS STRING)
GROUP BY split, query_id, ad_id, source;

-- No edge may join a held-out query to its answer, in either direction.
CREATE TABLE answers AS
WITH held_out AS (
    SELECT fold(query) AS query, fold(text) AS ad
    FROM split_clicks JOIN ads ON ads.source_id = CAST(split_clicks.ad AS STRING)
    WHERE split <> 'train'
)
SELECT query AS node, ad AS anchor FROM held_out
UNION DISTINCT
SELECT ad AS node, query AS anchor FROM held_out;

-- Held-out queries have no edges.
CREATE TABLE linked_queries AS
SELECT query_id, query_links.anchor, sum(query_links.weight) AS weight
FROM query_links
JOIN queries ON queries.text = query_links.query AND queries.split = 'train'
LEFT JOIN answers
    ON answers.node = fold(query_links.query) AND answers.anchor = fold(query_links.anchor)
WHERE answers.node IS NULL
GROUP BY query_id, query_links.anchor;

CREATE TABLE linked_ads AS
SELECT ad_id, ad_links.anchor, sum(ad_links.weight) AS weight
FROM ad_links
JOIN ads ON ads.source_id = CAST(ad_links.ad AS STRING)
LEFT JOIN answers ON answers.node = fold(ads.text) AND answers.anchor = fold(ad_links.anchor)
WHERE answers.node IS NULL
GROUP BY ad_id, ad_links.anchor;

CREATE TABLE anchors AS
SELECT CAST(row_number() OVER (ORDER BY text) - 1 AS BIGINT) AS anchor_id, text
FROM (
    SELECT anchor AS text FROM linked_queries
    UNION DISTINCT
    SELECT anchor AS text FROM linked_ads
) AS linked;

CREATE TABLE query_edges AS
SELECT query_id, anchor_id, weight
FROM linked_queries JOIN anchors ON anchors.text = linked_queries.anchor;

CREATE TABLE ad_edges AS
SELECT ad_id, anchor_id, weight
FROM linked_ads JOIN anchors ON anchors.text = linked_ads.anchor;
