// What a program does with the AWS SDK for Java, as tests/sqs/talk.py does; it checks the digests of what it sends and
// gets: java Talk.java URL KEY SECRET

import com.amazonaws.AmazonServiceException;
import com.amazonaws.SdkClientException;
import com.amazonaws.auth.AWSStaticCredentialsProvider;
import com.amazonaws.auth.BasicAWSCredentials;
import com.amazonaws.client.builder.AwsClientBuilder.EndpointConfiguration;
import com.amazonaws.services.sqs.AmazonSQS;
import com.amazonaws.services.sqs.AmazonSQSClientBuilder;
import com.amazonaws.services.sqs.model.BatchResultErrorEntry;
import com.amazonaws.services.sqs.model.CreateQueueRequest;
import com.amazonaws.services.sqs.model.DeleteMessageBatchRequestEntry;
import com.amazonaws.services.sqs.model.DeleteMessageBatchResultEntry;
import com.amazonaws.services.sqs.model.GetQueueAttributesRequest;
import com.amazonaws.services.sqs.model.Message;
import com.amazonaws.services.sqs.model.MessageAttributeValue;
import com.amazonaws.services.sqs.model.QueueDoesNotExistException;
import com.amazonaws.services.sqs.model.ReceiveMessageRequest;
import com.amazonaws.services.sqs.model.SendMessageBatchRequestEntry;
import com.amazonaws.services.sqs.model.SendMessageBatchResult;
import com.amazonaws.services.sqs.model.SendMessageBatchResultEntry;
import com.amazonaws.services.sqs.model.SendMessageRequest;
import com.amazonaws.util.json.Jackson;
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.CompletableFuture;

public class Talk {
    private final AmazonSQS sqs;
    private final Map<String, Object> told = new TreeMap<>();

    private Talk(AmazonSQS sqs) {
        this.sqs = sqs;
    }

    public static void main(String[] given) throws Exception {
        AmazonSQS sqs = AmazonSQSClientBuilder.standard()
            .withEndpointConfiguration(new EndpointConfiguration(given[0], "us-east-1"))
            .withCredentials(new AWSStaticCredentialsProvider(new BasicAWSCredentials(given[1], given[2])))
            .build();
        Talk talk = new Talk(sqs);
        talk.talk();
        System.out.println(Jackson.toJsonString(talk.told));
        sqs.shutdown();
    }

    private void talk() throws Exception {
        String dead = sqs.createQueue("dead").getQueueUrl();
        String arn = sqs.getQueueAttributes(new GetQueueAttributesRequest(dead).withAttributeNames("QueueArn"))
            .getAttributes().get("QueueArn");
        String url = sqs.createQueue(new CreateQueueRequest("q").addAttributesEntry("VisibilityTimeout", "600")
            .addAttributesEntry("RedrivePolicy",
                "{\"maxReceiveCount\":\"1\",\"deadLetterTargetArn\":\"" + arn + "\"}")).getQueueUrl();
        String fifo = sqs.createQueue(new CreateQueueRequest("q.fifo").addAttributesEntry("VisibilityTimeout", "600")
            .addAttributesEntry("FifoQueue", "true")).getQueueUrl();
        String waitedAt = sqs.createQueue("waited-at").getQueueUrl();
        waitForOne(url);
        List<Message> leased = sendAndReceive(url);
        List<String> numbers = new ArrayList<>(List.of(sendInOrder(fifo, "first"), sendInOrder(fifo, "second")));
        Message first = receive(fifo, 1).get(0);
        told.put("first", first.getBody());

        CompletableFuture<Message> waitingOverIt = CompletableFuture.supplyAsync(() -> receiveOverAKill(waitedAt));
        System.out.println("kill");
        new BufferedReader(new InputStreamReader(System.in)).readLine();

        endLeased(url, dead, leased);
        Message kept = receive(url, 1).get(0);
        sqs.deleteMessage(url, kept.getReceiptHandle());
        told.put("kept", kept.getBody());
        numbers.addAll(List.of(sendInOrder(fifo, "second"), sendInOrder(fifo, "third")));
        told.put("known again", numbers.get(1).equals(numbers.get(2)) && numbers.get(0).compareTo(numbers.get(1)) < 0
            && numbers.get(1).compareTo(numbers.get(3)) < 0);
        told.put("while the first is out", sqs.receiveMessage(fifo).getMessages().size());
        sqs.deleteMessage(fifo, first.getReceiptHandle());
        told.put("in order", receive(fifo, 2).stream().map(Message::getBody).toList());
        sqs.sendMessage(waitedAt, "again");
        told.put("waited for over the kill", waitingOverIt.get().getBody());
        told.put("left", sqs.getQueueAttributes(new GetQueueAttributesRequest(url).withAttributeNames(
            "ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"))
            .getAttributes().values().stream().mapToInt(Integer::parseInt).sum());
        try {
            sqs.getQueueUrl("none");
        } catch (QueueDoesNotExistException refused) {
            told.put("refused", refused.getErrorCode().replaceFirst(".*[.]", ""));
        }
    }

    private void waitForOne(String url) throws InterruptedException {
        CompletableFuture<List<Message>> waiting = CompletableFuture.supplyAsync(() -> receive(url, 1));
        Thread.sleep(500); // it is on its way; too early would show no less than it does
        sqs.sendMessage(url, "hello");
        Message message = waiting.join().get(0);
        sqs.deleteMessage(url, message.getReceiptHandle());
        told.put("waited for", message.getBody());
    }

    private List<Message> sendAndReceive(String url) {
        sqs.sendMessage(new SendMessageRequest(url, "größe")
            .addMessageAttributesEntry("a", new MessageAttributeValue().withDataType("String").withStringValue("x"))
            .addMessageAttributesEntry("b", new MessageAttributeValue().withDataType("Binary")
                .withBinaryValue(ByteBuffer.wrap(new byte[] {0, (byte) 255}))));
        SendMessageBatchResult sent = sqs.sendMessageBatch(url, List.of(
            new SendMessageBatchRequestEntry("1", "one"), new SendMessageBatchRequestEntry("2", "\u0000"),
            new SendMessageBatchRequestEntry("3", "two")));
        told.put("sent", sent.getSuccessful().stream().map(SendMessageBatchResultEntry::getId).toList());
        told.put("failed", sent.getFailed().stream().map(BatchResultErrorEntry::getCode).toList());
        List<Message> leased = receive(url, 2);
        told.put("bodies", leased.stream().map(Message::getBody).toList());
        Map<String, String> types = new TreeMap<>();
        leased.get(0).getMessageAttributes().forEach((name, value) -> types.put(name, value.getDataType()));
        told.put("types", types);
        return leased;
    }

    private void endLeased(String url, String dead, List<Message> leased) {
        told.put("deleted", sqs.deleteMessageBatch(url, List.of(
            new DeleteMessageBatchRequestEntry("1", leased.get(0).getReceiptHandle())))
            .getSuccessful().stream().map(DeleteMessageBatchResultEntry::getId).toList());
        // it was received as often as it may be
        sqs.changeMessageVisibility(url, leased.get(1).getReceiptHandle(), 0);
        told.put("dead", receive(dead, 1).get(0).getBody());
    }

    private List<Message> receive(String url, int count) {
        List<Message> got = new ArrayList<>();
        while (got.size() < count) { // one receive may bring fewer than there are
            got.addAll(sqs.receiveMessage(new ReceiveMessageRequest(url).withMaxNumberOfMessages(count - got.size())
                .withWaitTimeSeconds(20).withMessageAttributeNames("All")).getMessages());
        }
        return got;
    }

    private Message receiveOverAKill(String url) {
        while (true) {
            try {
                return receive(url, 1).get(0);
            } catch (AmazonServiceException answered) { // that is no connection that went
                throw answered;
            } catch (SdkClientException gone) {
                try {
                    Thread.sleep(200);
                } catch (InterruptedException ended) {
                    throw gone;
                }
            }
        }
    }

    private String sendInOrder(String fifo, String body) {
        return sqs.sendMessage(new SendMessageRequest(fifo, body)
            .withMessageGroupId("g").withMessageDeduplicationId(body)).getSequenceNumber();
    }
}
