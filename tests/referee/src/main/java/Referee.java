import java.io.File;
import java.net.InetSocketAddress;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ConcurrentHashMap;
import java.util.concurrent.ConcurrentMap;

import org.apache.rocketmq.broker.BrokerPathConfigHelper;
import org.apache.rocketmq.broker.offset.ConsumerOffsetManager;
import org.apache.rocketmq.broker.schedule.DelayOffsetSerializeWrapper;
import org.apache.rocketmq.broker.subscription.SubscriptionGroupManager;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.ConfigManager;
import org.apache.rocketmq.common.MixAll;
import org.apache.rocketmq.common.TopicConfig;
import org.apache.rocketmq.common.attribute.CQType;
import org.apache.rocketmq.common.message.Message;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.common.sysflag.MessageSysFlag;
import org.apache.rocketmq.remoting.protocol.DataVersion;
import org.apache.rocketmq.remoting.protocol.RemotingSerializable;
import org.apache.rocketmq.remoting.protocol.body.TopicConfigSerializeWrapper;
import org.apache.rocketmq.remoting.protocol.subscription.SubscriptionGroupConfig;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.GetMessageResult;
import org.apache.rocketmq.store.PutMessageResult;
import org.apache.rocketmq.store.QueryMessageResult;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.config.StorePathConfigHelper;
import org.apache.rocketmq.store.queue.ConsumeQueueInterface;
import org.apache.rocketmq.store.queue.CqUnit;
import org.apache.rocketmq.store.queue.ReferredIterator;
import org.apache.rocketmq.store.stats.BrokerStatsManager;

/**
 * Opens a store directory with Apache RocketMQ's own classes and prints, one tab-separated line
 * each, what it answers: queues, messages, units of batch queues, pulls from each offset of these,
 * look-ups by unique id, what its JSON files hold.
 *
 * Arguments: store directory, commit log file size, queue file size, index slots, index entries,
 * number of probe messages to put into the first queue of each topic at the end (into a batch queue
 * as one batch); and, if given, a group to be made that has consumed what was there before the probes.
 */
public final class Referee {
    public static void main(String[] args) {
        try {
            judge(args);
            System.exit(0);
        } catch (Throwable failure) { // the store's threads would keep the process alive
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static void judge(String[] args) throws Exception {
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
        int probes = Integer.parseInt(args[5]);
        BrokerConfig broker = new BrokerConfig();
        ConcurrentMap<String, TopicConfig> topics = new ConcurrentHashMap<>();
        String file = BrokerPathConfigHelper.getTopicConfigPath(args[0]);
        String json = org.apache.rocketmq.common.MixAll.file2String(file);
        if (json != null) {
            TopicConfigSerializeWrapper wrapper =
                TopicConfigSerializeWrapper.fromJson(json, TopicConfigSerializeWrapper.class);
            topics.putAll(wrapper.getTopicConfigTable());
            for (TopicConfig topic : new TreeMap<>(topics).values()) {
                line("topic", topic.getTopicName(), topic.getReadQueueNums(), topic.getWriteQueueNums(), topic.getPerm());
            }
        }
        files(args[0]);
        DefaultMessageStore store = new DefaultMessageStore(
            config, new BrokerStatsManager("referee", false), (a, b, c, d, e, f, g) -> { }, broker, topics);
        if (!store.load()) {
            throw new IllegalStateException("the store did not load");
        }
        store.start();
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
        line("log", store.getMinPhyOffset(), store.getMaxPhyOffset());
        TreeMap<String, Map<Integer, ConsumeQueueInterface>> table = new TreeMap<>();
        store.getQueueStore().getConsumeQueueTable().forEach((topic, queues) -> table.put(topic, new TreeMap<>(queues)));
        for (String topic : table.keySet()) {
            for (int queue : table.get(topic).keySet()) {
                long min = store.getMinOffsetInQueue(topic, queue);
                long max = store.getMaxOffsetInQueue(topic, queue);
                line("queue", topic, queue, min, max);
                if (isBatchQueue(table.get(topic).get(queue))) {
                    readBatches(store, table.get(topic).get(queue));
                    continue;
                }
                for (long offset = min; offset < max; offset++) {
                    long physical = store.getCommitLogOffsetInQueue(topic, queue, offset);
                    MessageExt message = store.lookMessageByOffset(physical);
                    String unique = message.getProperty("UNIQ_KEY");
                    line("message", topic, queue, message.getQueueOffset(), message.getCommitLogOffset(),
                        message.getStoreSize(), sha256(message.getBody()), unique, message.getMsgId(),
                        new TreeMap<>(message.getProperties()));
                    if (unique != null && offset % 7 == 0) {
                        QueryMessageResult found = store.queryMessage(topic, unique, 32, 0, Long.MAX_VALUE);
                        line("found", topic, unique, found.getMessageBufferList().size());
                    }
                }
            }
        }
        for (String topic : table.keySet()) {
            if (topic.startsWith("rmq_sys_")) {
                continue;
            }
            int queue = table.get(topic).keySet().iterator().next();
            if (isBatchQueue(table.get(topic).get(queue))) {
                put(store, probeBatch(topic, queue, probes));
                continue;
            }
            for (int i = 0; i < probes; i++) {
                put(store, probe(topic, queue, ("probe-" + i).getBytes(StandardCharsets.UTF_8), new HashMap<>()));
            }
        }
        store.shutdown();
        if (args.length > 6) {
            consume(args[0], args[6], table);
        }
    }

    private static boolean isBatchQueue(ConsumeQueueInterface queue) {
        return queue.getCQType() == CQType.BatchCQ;
    }

    /**
     * Prints the units of a batch queue, what a pull from each offset returns, the messages that a
     * client decodes, and how many records are found by the keys of each batch.
     */
    private static void readBatches(DefaultMessageStore store, ConsumeQueueInterface queue) throws Exception {
        String topic = queue.getTopic();
        int id = queue.getQueueId();
        long end = queue.getMaxOffsetInQueue();
        for (long at = queue.getMinOffsetInQueue(); at < end; ) {
            ReferredIterator<CqUnit> units = queue.iterateFrom(at); // ends at the end of a file
            while (units.hasNext()) {
                CqUnit unit = units.next();
                at = unit.getQueueOffset() + unit.getBatchNum();
                MessageExt batch = store.lookMessageByOffset(unit.getPos());
                line("unit", topic, id, unit.getQueueOffset(), unit.getBatchNum(), unit.getPos(), unit.getSize(),
                    unit.getTagsCode(), batch.getMsgId(), batch.getProperty("UNIQ_KEY"), batch.getTags(),
                    store.getOffsetInQueueByTime(topic, id, batch.getStoreTimestamp()));
                List<String> keys = new ArrayList<>(List.of(batch.getProperty("UNIQ_KEY")));
                if (batch.getKeys() != null) {
                    keys.addAll(List.of(batch.getKeys().split(" ")));
                }
                for (String key : keys) {
                    QueryMessageResult found = store.queryMessage(topic, key, 32, 0, Long.MAX_VALUE);
                    line("found", topic, key, found.getMessageBufferList().size());
                }
            }
        }
        for (long offset = Math.max(0, queue.getMinOffsetInQueue() - 1); offset <= end; offset++) {
            GetMessageResult pulled = store.getMessage("referee", topic, id, offset, 1, null);
            List<MessageExt> messages = new ArrayList<>();
            for (ByteBuffer record : pulled.getMessageBufferList()) {
                for (MessageExt batch : MessageDecoder.decodesBatch(record, true, false, true)) {
                    MessageDecoder.decodeMessage(batch, messages); // as RocketMQ's client does
                }
            }
            pulled.release();
            line("pull", topic, id, offset, pulled.getStatus(), pulled.getNextBeginOffset(), messages.size());
            for (MessageExt message : messages) {
                if (message.getQueueOffset() == offset) {
                    line("part", topic, id, offset, sha256(message.getBody()), message.getFlag(), message.getTags(),
                        message.getKeys());
                }
            }
        }
    }

    private static MessageExtBrokerInner probeBatch(String topic, int queue, int count) {
        List<Message> parts = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            parts.add(new Message(topic, ("probe-" + i).getBytes(StandardCharsets.UTF_8)));
        }
        MessageExtBrokerInner probe = probe(topic, queue, MessageDecoder.encodeMessages(parts),
            new HashMap<>(Map.of("INNER_NUM", String.valueOf(count), "UNIQ_KEY", "PROBES")));
        probe.setSysFlag(MessageSysFlag.INNER_BATCH_FLAG | MessageSysFlag.NEED_UNWRAP_FLAG);
        return probe;
    }

    private static MessageExtBrokerInner probe(String topic, int queue, byte[] body, Map<String, String> properties) {
        MessageExtBrokerInner probe = new MessageExtBrokerInner();
        probe.setTopic(topic);
        probe.setQueueId(queue);
        probe.setBody(body);
        MessageAccessor.setProperties(probe, properties);
        probe.setBornTimestamp(System.currentTimeMillis());
        probe.setBornHost(new InetSocketAddress("127.0.0.1", 1));
        probe.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        probe.setPropertiesString(MessageDecoder.messageProperties2String(probe.getProperties()));
        return probe;
    }

    private static void put(DefaultMessageStore store, MessageExtBrokerInner probe) {
        PutMessageResult put = store.putMessage(probe);
        line("put", probe.getTopic(), probe.getQueueId(), put.getPutMessageStatus(),
            put.getAppendMessageResult().getLogicsOffset(), put.getAppendMessageResult().getWroteOffset());
    }

    /** Prints what RocketMQ's own managers read from the files of groups and offsets. */
    private static void files(String root) throws Exception {
        SubscriptionGroupManager groups = groups(root);
        for (SubscriptionGroupConfig group : new TreeMap<>(groups.getSubscriptionGroupTable()).values()) {
            line("group", group.getGroupName(), group.getRetryMaxTimes(), group.isConsumeMessageOrderly(),
                new TreeMap<>(group.getAttributes()));
        }
        new TreeMap<>(offsets(root).getOffsetTable()).forEach((key, queues) ->
            new TreeMap<>(queues).forEach((queue, offset) -> line("offset", key, queue, offset)));
        String json = MixAll.file2String(StorePathConfigHelper.getDelayOffsetStorePath(root));
        if (json != null) {
            DelayOffsetSerializeWrapper levels = RemotingSerializable.fromJson(json, DelayOffsetSerializeWrapper.class);
            new TreeMap<>(levels.getOffsetTable()).forEach((level, offset) -> line("level", level, offset));
        }
    }

    /** Makes a group that has consumed every queue to its end; writes the files as the broker does. */
    private static void consume(String root, String name, TreeMap<String, Map<Integer, ConsumeQueueInterface>> table)
        throws Exception {
        SubscriptionGroupManager groups = groups(root);
        SubscriptionGroupConfig group = new SubscriptionGroupConfig();
        group.setGroupName(name);
        groups.getSubscriptionGroupTable().put(name, group);
        MixAll.string2File(groups.encode(true), BrokerPathConfigHelper.getSubscriptionGroupPath(root));
        ConsumerOffsetManager offsets = offsets(root);
        table.forEach((topic, queues) -> queues.forEach((queue, units) -> offsets.getOffsetTable()
            .computeIfAbsent(topic + "@" + name, key -> new ConcurrentHashMap<>())
            .put(queue, units.getMaxOffsetInQueue())));
        MixAll.string2File(offsets.encode(true), BrokerPathConfigHelper.getConsumerOffsetPath(root));
    }

    private static SubscriptionGroupManager groups(String root) throws Exception {
        SubscriptionGroupManager manager = new SubscriptionGroupManager();
        String json = MixAll.file2String(BrokerPathConfigHelper.getSubscriptionGroupPath(root));
        if (json != null) {
            manager.decode(json);
        }
        return manager;
    }

    private static ConsumerOffsetManager offsets(String root) throws Exception {
        ConsumerOffsetManager manager = new ConsumerOffsetManager();
        String json = MixAll.file2String(BrokerPathConfigHelper.getConsumerOffsetPath(root));
        if (json != null) {
            manager.decode(json);
        }
        return manager;
    }

    private static String sha256(byte[] body) throws Exception {
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(body == null ? new byte[0] : body));
    }

    private static void line(Object... fields) {
        StringBuilder text = new StringBuilder();
        for (Object field : fields) {
            text.append(text.length() == 0 ? "" : "\t").append(field);
        }
        System.out.println(text);
    }
}
