import java.io.File;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Writes a store with Apache RocketMQ's own classes: tagged messages with keys in two queues of
 * "orders", some of level 18 of the delay queue, and inner batches in "batches" if they are asked for.
 *
 * Arguments: store directory, commit log file size, queue file size, index slots, index entries,
 * number of messages; then any of "ext" (consume queue extensions), "batches" and "kill".
 */
public final class Writer {
    public static void main(String[] args) {
        try {
            write(args, List.of(args).subList(6, args.length));
            System.exit(0);
        } catch (Throwable failure) { // the store's threads would keep the process alive
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static void write(String[] args, List<String> flags) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[1]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[2]));
        config.setMapperFileSizeBatchConsumeQueue(Integer.parseInt(args[2]) / 20 * 46);
        config.setMaxHashSlotNum(Integer.parseInt(args[3]));
        config.setMaxIndexNum(Integer.parseInt(args[4]));
        config.setTimerWheelEnable(false);
        config.setEnableCompaction(false);
        config.setHaListenPort(0);
        config.setCleanFileForciblyEnable(false);
        config.setFileReservedTime(1_000_000);
        config.setEnableConsumeQueueExt(flags.contains("ext"));
        config.setMappedFileSizeConsumeQueueExt(4096);
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        topics.put("orders", new TopicConfig("orders", 2, 2));
        TopicConfig batches = new TopicConfig("batches", 2, 2);
        batches.setAttributes(Map.of("queue.type", CQType.BatchCQ.toString()));
        topics.put("batches", batches);
        DefaultMessageStore store = new DefaultMessageStore(config, new BrokerStatsManager("writer", false),
            (a, b, c, d, e, f, g) -> { }, new BrokerConfig(), topics);
        if (!store.load()) {
            throw new IllegalStateException("the store did not load");
        }
        store.start();
        int count = Integer.parseInt(args[5]);
        for (int i = 0; i < count; i++) {
            put(store, i, i % 10 == 9 ? "SCHEDULE_TOPIC_XXXX" : "orders");
            if (flags.contains("batches") && i % 10 == 0) {
                putBatch(store, i);
            }
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
        if (flags.contains("kill")) {
            store.getCommitLog().flush();
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
        store.shutdown();
    }

    private static void put(DefaultMessageStore store, int i, String topic) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        Map<String, String> properties = new HashMap<>();
        properties.put("KEYS", "k" + i + " other" + i % 5);
        properties.put("UNIQ_KEY", String.format("%032X", i));
        properties.put("TAGS", "t" + i % 7);
        boolean delayed = !topic.equals("orders");
        if (delayed) {
            properties.putAll(Map.of("DELAY", "18", "REAL_TOPIC", "orders", "REAL_QID", "0"));
        }
        message.setTopic(topic);
        message.setQueueId(delayed ? 17 : i % 2);
        message.setBody(("body-" + i).getBytes(StandardCharsets.UTF_8));
        MessageAccessor.setProperties(message, properties);
        message.setTags("t" + i % 7);
        prepare(message);
        check(store.putMessage(message));
    }

    private static void putBatch(DefaultMessageStore store, int i) throws Exception {
        List<Message> parts = new ArrayList<>();
        int count = 1 + i / 10 % 7;
        for (int n = 0; n < count; n++) {
            Message part = new Message("batches", "t" + n, "p" + i + "." + n, ("part-" + n).getBytes(StandardCharsets.UTF_8));
            part.setFlag(n);
            parts.add(part);
        }
        MessageExtBrokerInner batch = new MessageExtBrokerInner();
        batch.setTopic("batches");
        batch.setQueueId(i / 10 % 2);
        batch.setBody(MessageDecoder.encodeMessages(parts));
        MessageAccessor.setProperties(batch, new HashMap<>(Map.of("INNER_NUM", String.valueOf(count),
            "UNIQ_KEY", String.format("B%031X", i), "KEYS", "b" + i)));
        if (count == 1) {
            batch.setTags("t0");
        }
        batch.setSysFlag(MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG);
        prepare(batch);
        check(store.putMessage(batch));
    }

    private static void prepare(MessageExtBrokerInner message) {
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(new InetSocketAddress("127.0.0.1", 1));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
    }

    private static void check(PutMessageResult put) {
        if (!put.isOk()) {
            throw new IllegalStateException(put.getPutMessageStatus().toString());
        }
    }
}
