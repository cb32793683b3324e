// Prints what the Java side really answers for each key; tests/unit/data/*.json keep its output.
// Class path: rocketmq-client and rocketmq-proxy 5.5.0 (with their dependencies, so Guava), kafka-clients 3.9.1.
// Standard input: the base64 of one key's UTF-8 a line. Standard output: tab-separated answers, in the same order.

import com.google.common.hash.Hashing;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.ArrayList;
import java.util.Base64;
import java.util.List;
import java.util.function.IntFunction;
import org.apache.kafka.clients.producer.internals.BuiltInPartitioner;
import org.apache.kafka.common.utils.Utils;
import org.apache.rocketmq.client.producer.selector.SelectMessageQueueByHash;
import org.apache.rocketmq.common.message.MessageQueue;
import org.apache.rocketmq.proxy.common.ProxyContext;
import org.apache.rocketmq.proxy.grpc.v2.producer.SendMessageActivity;
import org.apache.rocketmq.proxy.service.route.MessageQueueView;
import org.apache.rocketmq.remoting.protocol.route.BrokerData;
import org.apache.rocketmq.remoting.protocol.route.QueueData;
import org.apache.rocketmq.remoting.protocol.route.TopicRouteData;

public class KnownAnswers {
    static final int[] COUNTS = {1, 2, 3, 4, 7, 8, 16, 32, 100, 1000};

    // Opens the proxy's protected selector; its code is untouched.
    static int proxy(String key, int count) {
        QueueData queues = new QueueData();
        queues.setBrokerName("broker-a");
        queues.setWriteQueueNums(count);
        queues.setReadQueueNums(count);
        queues.setPerm(6);
        BrokerData broker = new BrokerData();
        broker.setCluster("cluster");
        broker.setBrokerName("broker-a");
        java.util.HashMap<Long, String> addresses = new java.util.HashMap<>();
        addresses.put(0L, "host:1");
        broker.setBrokerAddrs(addresses);
        TopicRouteData route = new TopicRouteData();
        route.setQueueDatas(List.of(queues));
        route.setBrokerDatas(List.of(broker));
        apache.rocketmq.v2.SendMessageRequest request = apache.rocketmq.v2.SendMessageRequest.newBuilder()
            .addMessages(apache.rocketmq.v2.Message.newBuilder().setSystemProperties(
                apache.rocketmq.v2.SystemProperties.newBuilder().setMessageGroup(key)))
            .build();
        try {
            var selector = Class.forName(SendMessageActivity.class.getName() + "$SendMessageQueueSelector")
                .getConstructor(apache.rocketmq.v2.SendMessageRequest.class);
            selector.setAccessible(true);
            Object chosen = selector.newInstance(request);
            var select = chosen.getClass().getMethod("select", ProxyContext.class, MessageQueueView.class);
            select.setAccessible(true);
            var queue = (org.apache.rocketmq.proxy.service.route.AddressableMessageQueue)
                select.invoke(chosen, ProxyContext.create(), new MessageQueueView("topic", route, null));
            return queue.getQueueId();
        } catch (ReflectiveOperationException error) {
            throw new IllegalStateException(error);
        }
    }

    static int remoting(String key, int count) {
        List<MessageQueue> queues = new ArrayList<>();
        for (int i = 0; i < count; i++) {
            queues.add(new MessageQueue("topic", "broker-a", i));
        }
        return new SelectMessageQueueByHash().select(queues, null, key).getQueueId();
    }

    static String each(IntFunction<Integer> answer) {
        List<String> answers = new ArrayList<>();
        for (int count : COUNTS) {
            answers.add(String.valueOf(answer.apply(count)));
        }
        return String.join(",", answers);
    }

    public static void main(String[] args) throws Exception {
        BufferedReader in = new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line; (line = in.readLine()) != null; ) {
            byte[] utf8 = Base64.getDecoder().decode(line);
            String key = new String(utf8, StandardCharsets.UTF_8);
            System.out.println(String.join("\t",
                String.valueOf(key.hashCode()),
                each(n -> Math.floorMod(key.hashCode(), n)),
                String.valueOf(Utils.toPositive(Utils.murmur2(utf8))),
                each(n -> BuiltInPartitioner.partitionForKey(utf8, n)),
                each(n -> remoting(key, n)),
                each(n -> proxy(key, n)),
                each(n -> Hashing.consistentHash((long) key.hashCode() * 4294967291L, n))));
        }
    }
}
