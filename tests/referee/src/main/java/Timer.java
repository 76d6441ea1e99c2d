import java.io.File;
import java.net.InetSocketAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.concurrent.ConcurrentHashMap;

import org.apache.rocketmq.broker.BrokerPathConfigHelper;
import org.apache.rocketmq.common.BrokerConfig;
import org.apache.rocketmq.common.message.MessageAccessor;
import org.apache.rocketmq.common.message.MessageDecoder;
import org.apache.rocketmq.common.message.MessageExt;
import org.apache.rocketmq.common.message.MessageExtBrokerInner;
import org.apache.rocketmq.store.DefaultMessageStore;
import org.apache.rocketmq.store.config.MessageStoreConfig;
import org.apache.rocketmq.store.stats.BrokerStatsManager;
import org.apache.rocketmq.store.timer.TimerCheckpoint;
import org.apache.rocketmq.store.timer.TimerMessageStore;
import org.apache.rocketmq.store.timer.TimerMetrics;

/**
 * Runs Apache RocketMQ's message store with its timer on a store directory, and ends: in order, or as
 * a kill does. Prints the unique ids of the messages of topic "orders" in their order.
 *
 * Arguments: store directory, commit log file size, queue file size, index slots, index entries, the
 * timer's roll window in seconds; then, done in their order, any of "put:ID:TIME" and "cancel:ID:TIME"
 * (TIMER_OUT_MS, counted from the start), "until:COUNT" (wait until so many messages are in "orders") and
 * "queued:COUNT" (wait until the timer has read so many messages of its queue); and "kill".
 */
public final class Timer {
    private static final String TIMER_TOPIC = "rmq_sys_wheel_timer";

    public static void main(String[] args) {
        try {
            run(args, List.of(args).subList(6, args.length));
            System.exit(0);
        } catch (Throwable failure) { // the store's threads would keep the process alive
            failure.printStackTrace();
            System.exit(1);
        }
    }

    private static void run(String[] args, List<String> orders) throws Exception {
        MessageStoreConfig config = new MessageStoreConfig();
        config.setStorePathRootDir(args[0]);
        config.setStorePathCommitLog(args[0] + File.separator + "commitlog");
        config.setMappedFileSizeCommitLog(Integer.parseInt(args[1]));
        config.setMappedFileSizeConsumeQueue(Integer.parseInt(args[2]));
        config.setMaxHashSlotNum(Integer.parseInt(args[3]));
        config.setMaxIndexNum(Integer.parseInt(args[4]));
        config.setTimerRollWindowSlot(Integer.parseInt(args[5]));
        config.setEnableCompaction(false);
        config.setHaListenPort(0);
        config.setCleanFileForciblyEnable(false);
        config.setFileReservedTime(1_000_000);
        BrokerStatsManager stats = new BrokerStatsManager("timer", false);
        DefaultMessageStore store = new DefaultMessageStore(
            config, stats, (a, b, c, d, e, f, g) -> { }, new BrokerConfig(), new ConcurrentHashMap<>());
        TimerCheckpoint checkpoint = new TimerCheckpoint(BrokerPathConfigHelper.getTimerCheckPath(args[0]));
        TimerMetrics metrics = new TimerMetrics(BrokerPathConfigHelper.getTimerMetricsPath(args[0]));
        TimerMessageStore timer = new TimerMessageStore(store, config, checkpoint, metrics, stats);
        store.setTimerMessageStore(timer);
        if (!store.load() || !timer.load()) {
            throw new IllegalStateException("the store did not load");
        }
        store.start();
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
        timer.start(true);
        long begin = System.currentTimeMillis() / 1000 * 1000;
        for (String order : orders) {
            String[] words = order.split(":");
            switch (words[0]) {
                case "put" -> put(store, words[1], begin + Long.parseLong(words[2]), null);
                case "cancel" -> put(store, "cancels-" + words[1], begin + Long.parseLong(words[2]),
                    TimerMessageStore.buildDeleteKey("orders", words[1]));
                case "until" -> {
                    while (store.getMaxOffsetInQueue("orders", 0) < Long.parseLong(words[1])) {
                        Thread.sleep(10);
                    }
                }
                case "queued" -> {
                    while (timer.getCommitQueueOffset() < Long.parseLong(words[1])) {
                        Thread.sleep(10);
                    }
                }
                default -> { }
            }
        }
        while (store.dispatchBehindBytes() > 0) {
            Thread.sleep(10);
        }
        for (long at = store.getMinOffsetInQueue("orders", 0); at < store.getMaxOffsetInQueue("orders", 0); at++) {
            MessageExt message = store.lookMessageByOffset(store.getCommitLogOffsetInQueue("orders", 0, at));
            System.out.println("delivered\t" + message.getProperty("UNIQ_KEY"));
        }
        if (orders.contains("kill")) {
            store.getCommitLog().flush();
            System.out.flush();
            Runtime.getRuntime().halt(0);
        }
        timer.shutdown();
        store.shutdown();
    }

    private static void put(DefaultMessageStore store, String id, long outMs, String cancels) {
        MessageExtBrokerInner message = new MessageExtBrokerInner();
        Map<String, String> properties = new HashMap<>(Map.of("UNIQ_KEY", id, "TIMER_OUT_MS", "" + outMs,
            "TIMER_DELIVER_MS", "" + (outMs + 1000), "REAL_TOPIC", "orders", "REAL_QID", "0"));
        if (cancels != null) {
            properties.put("TIMER_DEL_UNIQKEY", cancels);
        }
        message.setTopic(TIMER_TOPIC);
        message.setQueueId(0);
        message.setBody(id.getBytes(StandardCharsets.UTF_8));
        MessageAccessor.setProperties(message, properties);
        message.setBornTimestamp(System.currentTimeMillis());
        message.setBornHost(new InetSocketAddress("127.0.0.1", 1));
        message.setStoreHost(new InetSocketAddress("127.0.0.1", 10911));
        message.setPropertiesString(MessageDecoder.messageProperties2String(message.getProperties()));
        if (!store.putMessage(message).isOk()) {
            throw new IllegalStateException("not put: " + id);
        }
    }
}
