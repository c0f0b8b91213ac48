// What a program in Java does with RabbitMQ's client. Takes a URL and a queue, prints what it saw, a line each.

import com.rabbitmq.client.*;
import java.nio.charset.StandardCharsets;
import java.util.*;
import java.util.concurrent.*;

public class Talk {
    public static void main(String[] given) throws Exception {
        String queue = given[1];
        ConnectionFactory factory = new ConnectionFactory();
        factory.setUri(given[0]);
        factory.setAutomaticRecoveryEnabled(true);
        try (Connection connection = factory.newConnection("talk"); Channel channel = connection.createChannel()) {
            channel.confirmSelect();
            channel.queueDeclare(queue, true, false, false, Map.of("x-max-priority", 3));
            AMQP.BasicProperties properties = new AMQP.BasicProperties.Builder().deliveryMode(2)
                .headers(Map.of("number", 7, "deep", Map.of("list", List.of(1, "x")))).build();
            for (int number = 0; number < 200; number++) {
                channel.basicPublish("", queue, properties, ("" + number).getBytes());
            }
            channel.waitForConfirmsOrDie(10_000);
            System.out.println("waiting " + channel.messageCount(queue));

            List<Integer> got = new ArrayList<>();
            CountDownLatch all = new CountDownLatch(200);
            channel.basicQos(10);
            String tag = channel.basicConsume(queue, false, Map.of("x-priority", 5), new DefaultConsumer(channel) {
                @Override
                public void handleDelivery(String tag, Envelope envelope, AMQP.BasicProperties came, byte[] body)
                    throws java.io.IOException {
                    got.add(Integer.parseInt(new String(body)));
                    channel.basicAck(envelope.getDeliveryTag(), false);
                    all.countDown();
                }
            });
            all.await(20, TimeUnit.SECONDS);
            channel.basicCancel(tag);
            boolean inOrder = got.size() == 200;
            for (int number = 0; inOrder && number < 200; number++) {
                inOrder = got.get(number) == number;
            }
            System.out.println("in order " + inOrder);

            channel.basicPublish("", queue, properties, new byte[1_000_000]);
            GetResponse back = take(channel, queue);
            channel.basicNack(back.getEnvelope().getDeliveryTag(), false, true);
            GetResponse again = take(channel, queue);
            System.out.println("redelivered " + again.getEnvelope().isRedeliver() + " " + again.getBody().length);
            System.out.println("headers " + again.getProps().getHeaders().get("number"));
            channel.basicAck(again.getEnvelope().getDeliveryTag(), false);

            BlockingQueue<Integer> returned = new LinkedBlockingQueue<>();
            channel.addReturnListener((code, text, exchange, key, came, body) -> returned.add(code));
            channel.basicPublish("", queue + "-none", true, properties, new byte[0]);
            System.out.println("returned " + returned.poll(10, TimeUnit.SECONDS));

            // Replies to amq.rabbitmq.reply-to
            Channel serving = connection.createChannel();
            RpcServer server = new StringRpcServer(serving, queue) {
                @Override
                public String handleStringCall(String request, AMQP.BasicProperties replied) {
                    return request + "!";
                }
            };
            Thread thread = new Thread(() -> {
                try {
                    server.mainloop();
                } catch (Exception ended) {
                    // with its connection
                }
            });
            thread.setDaemon(true);
            thread.start();
            RpcClient client = new RpcClient(connection.createChannel(), "", queue, 10_000);
            System.out.println("reply " + client.stringCall("hello"));

            Channel refused = connection.createChannel();
            try {
                refused.queueDeclarePassive(queue + "-none");
            } catch (java.io.IOException error) {
                ShutdownSignalException why = (ShutdownSignalException) error.getCause();
                System.out.println("refused " + ((AMQP.Channel.Close) why.getReason()).getReplyCode());
            }
            server.terminateMainloop();
            channel.queueDelete(queue);
        }
        System.out.println("closed");
    }

    private static GetResponse take(Channel channel, String queue) throws Exception {
        for (int tries = 0; tries < 100; tries++) {
            GetResponse found = channel.basicGet(queue, false);
            if (found != null) {
                return found;
            }
            Thread.sleep(50);
        }
        throw new IllegalStateException("nothing in " + queue);
    }
}
