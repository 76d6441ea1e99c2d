"""Broker: requests and topics. Pure."""

from __future__ import annotations

from typing import Final

from shared.metrics.family import (
    SECONDS_BUCKETS,
    SIZE_BUCKETS,
    Fold,
    counter,
    declared,
    gauge,
    histogram,
)

# One family is one row of a table.
# fmt: off
BROKER_MESSAGES_IN_TOTAL: Final = counter(
    "tidemark_broker_messages_in_total{topic,kind}", "messages",
    "Messages accepted and appended, once each, acknowledged or not. `kind` is `normal`, `fifo` "
    "(with a sharding key), `delay` (under its real topic; not counted again at delivery) or "
    "`retry` (nacked or redriven; under the topic that gets it)",
    title="Messages in", alert="a rate that falls to 0 where there is always traffic")
BROKER_RECEIVED_BYTES_TOTAL: Final = counter("tidemark_broker_received_bytes_total{topic}", "bytes",
    "Bytes of accepted messages in the log, framing included")
BROKER_MESSAGES_OUT_TOTAL: Final = counter(
    "tidemark_broker_messages_out_total{topic,group}", "messages",
    "Messages delivered to consumers, every delivery counted. `group` is empty for a plain pull")
BROKER_SENT_BYTES_TOTAL: Final = counter("tidemark_broker_sent_bytes_total{topic,group}", "bytes",
    "Record bytes of the messages delivered to consumers")
BROKER_MESSAGE_SIZE_BYTES: Final = histogram("tidemark_broker_message_size_bytes", "bytes",
    "Body size of accepted messages",
    title="Message sizes", buckets=SIZE_BUCKETS)
BROKER_PUT_RESULTS_TOTAL: Final = counter("tidemark_broker_put_results_total{result}", "requests",
    "Outcome of every send request: `ok`, `flush_timeout` (stored, outcome unknown to the "
    "sender), `replica_unavailable`, `disk_full`, `busy` (not serving, overloaded, dispatch "
    "behind), `invalid` (the request's fault), `failed`",
    title="Send results", alert="any `disk_full` or `failed`; `flush_timeout` above 0.1 %")
BROKER_PUT_DURATION_SECONDS: Final = histogram("tidemark_broker_put_duration_seconds{ack}", "s",
    "Send request until its answer, by the level reached; refused ones are not counted",
    title="Send until answer", buckets=SECONDS_BUCKETS,
    alert="99th percentile above half of your timeout")
BROKER_APPEND_DURATION_SECONDS: Final = histogram("tidemark_broker_append_duration_seconds", "s",
    "From numbering the messages of an append to their bytes in the page cache",
    title="Append", buckets=SECONDS_BUCKETS,
    alert="99th percentile above 50 ms: the disk cannot take the writeback")
BROKER_REQUEST_DURATION_SECONDS: Final = histogram(
    "tidemark_broker_request_duration_seconds{request}", "s",
    "Service time per kind of call; long polls include their wait",
    title="Service time", buckets=SECONDS_BUCKETS)
BROKER_REQUESTS_REJECTED_TOTAL: Final = counter(
    "tidemark_broker_requests_rejected_total{pool,code}", "requests",
    "Requests answered with an error, by its [runbook](runbook.md) code. `pool` as of "
    "`tidemark_broker_requests_queued`",
    title="Answered with an error",
    alert="`internal`, `corrupt-record`, `damaged-file`: any; `overloaded`: a steady rate")
BROKER_NAMES_CONFIGURED: Final = gauge("tidemark_broker_names_configured", "name services",
    "Name services with which this broker should register: `names.urls`")
BROKER_NAMES_REGISTERED: Final = gauge("tidemark_broker_names_registered", "name services",
    "Those that have accepted the last registration",
    alert="fewer than configured for 2 minutes")
BROKER_NAMES_REFUSED_TOTAL: Final = counter("tidemark_broker_names_refused_total{code}", "requests",
    "Registrations that failed, by the [runbook](runbook.md) code of the refusal; `unreachable`: "
    "there was no answer",
    title="Registrations of brokers that failed",
    alert="any but `unreachable` and `registration-base-unknown`")
BROKER_CONNECTIONS: Final = gauge("tidemark_broker_connections{role}", "connections",
    "Open client connections, by what they last asked: `producer`, `consumer`, `admin`, or `new`",
    title="Connections", alert="above 80 % of `connections_max`")
BROKER_CONNECTIONS_REFUSED_TOTAL: Final = counter(
    "tidemark_broker_connections_refused_total{reason}", "connections",
    "Connections closed by the broker: `limit` (too many), `no-request` (sent nothing in time), "
    "`answer-not-taken`",
    title="Connections refused", alert="`limit`: any")
BROKER_LONG_POLLS: Final = gauge("tidemark_broker_long_polls", "pulls",
    "Long polls that wait for a message",
    title="Long polls",
    alert="above 80 % of `held_pulls_max`: further ones are answered at once, and clients poll")
BROKER_LONG_POLL_WAKEUPS_TOTAL: Final = counter(
    "tidemark_broker_long_poll_wakeups_total{reason}", "pulls",
    "Long polls that ended: `message`, `timeout` (also: the client has gone), or `close` (the "
    "node stops, or serves no reads for now)",
    title="Long polls ended",
    alert="nothing: many by `timeout` mean that little is sent, or filters skip it")
BROKER_CLOCK_STEPS_TOTAL: Final = counter("tidemark_broker_clock_steps_total", "steps",
    "Times the wall clock stepped back further than store times can compensate",
    title="Clock steps",
    alert="any: fix the node's time service; searches by time are inexact around it")
BROKER_REQUESTS_QUEUED: Final = gauge("tidemark_broker_requests_queued{pool}", "requests",
    "Requests accepted and not yet answered, by kind of work: `put`, `pull` (without long "
    "polls), `query`, `admin`, `heartbeat`",
    title="Requests waiting")
BROKER_OLDEST_QUEUED_REQUEST_SECONDS: Final = gauge(
    "tidemark_broker_oldest_queued_request_seconds{pool}", "s",
    "Age of the oldest request that waits for its answer; 0 when there is none",
    title="Oldest waiting", alert="above half of the timeout of senders")
TOPIC_MAX_OFFSET_MESSAGES: Final = gauge("tidemark_topic_max_offset_messages{topic}", "messages",
    "Sum of the max offsets of the topic's queues held here")
TOPIC_MIN_OFFSET_MESSAGES: Final = gauge("tidemark_topic_min_offset_messages{topic}", "messages",
    "Sum of the min offsets: max minus min is what is retained")
QUEUE_MAX_OFFSET_MESSAGES: Final = gauge(
    "tidemark_queue_max_offset_messages{topic,queue}", "messages",
    "Next queue offset to be read by consumers: max offset of one queue. Up to "
    "`queue_series_max` series of all families by queue",
    fold=Fold.NONE)
QUEUE_MIN_OFFSET_MESSAGES: Final = gauge(
    "tidemark_queue_min_offset_messages{topic,queue}", "messages",
    "Smallest queue offset still stored",
    fold=Fold.NONE)
BROKER_LOOK_TIMESTAMP_SECONDS: Final = gauge("tidemark_broker_look_timestamp_seconds", "s",
    "Start of the sample behind the gauges of topics, queues and groups and the times of "
    "replication, dispatch, delivery and processing. Scrapes share a sample for a second, and "
    "for five times as long as it takes",
    alert="older than two minutes while it is scraped")
BROKER_LOOK_DURATION_SECONDS: Final = gauge("tidemark_broker_look_duration_seconds", "s",
    "Time that the sample took, other requests in between: grows with topics, queues and groups "
    "that move")
# fmt: on

REQUESTS: Final = declared(globals())
