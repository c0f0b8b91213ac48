// What a program does with the AWS SDK for Java; it checks the digests of what it sends and gets. Prints one line: JSON.

import com.amazonaws.auth.AWSStaticCredentialsProvider;
import com.amazonaws.auth.BasicAWSCredentials;
import com.amazonaws.client.builder.AwsClientBuilder.EndpointConfiguration;
import com.amazonaws.services.sqs.AmazonSQS;
import com.amazonaws.services.sqs.AmazonSQSClientBuilder;
import com.amazonaws.services.sqs.model.BatchResultErrorEntry;
import com.amazonaws.services.sqs.model.CreateQueueRequest;
import com.amazonaws.services.sqs.model.DeleteMessageBatchRequestEntry;
import com.amazonaws.services.sqs.model.GetQueueAttributesRequest;
import com.amazonaws.services.sqs.model.Message;
import com.amazonaws.services.sqs.model.MessageAttributeValue;
import com.amazonaws.services.sqs.model.QueueDoesNotExistException;
import com.amazonaws.services.sqs.model.ReceiveMessageRequest;
import com.amazonaws.services.sqs.model.SendMessageBatchRequestEntry;
import com.amazonaws.services.sqs.model.SendMessageBatchResult;
import com.amazonaws.services.sqs.model.SendMessageRequest;
import com.amazonaws.util.json.Jackson;
import java.nio.ByteBuffer;
import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;

public class Talk {
    public static void main(String[] given) {
        AmazonSQS sqs = AmazonSQSClientBuilder.standard()
            .withEndpointConfiguration(new EndpointConfiguration(given[0], "us-east-1"))
            .withCredentials(new AWSStaticCredentialsProvider(new BasicAWSCredentials(given[1], given[2])))
            .build();
        Map<String, Object> told = new TreeMap<>();
        standard(sqs, told);
        fifo(sqs, told);
        System.out.println(Jackson.toJsonString(told));
        sqs.shutdown();
    }

    private static void standard(AmazonSQS sqs, Map<String, Object> told) {
        String dead = sqs.createQueue("dead").getQueueUrl();
        String arn = sqs.getQueueAttributes(new GetQueueAttributesRequest(dead).withAttributeNames("QueueArn"))
            .getAttributes().get("QueueArn");
        String url = sqs.createQueue(new CreateQueueRequest("java").addAttributesEntry(
            "RedrivePolicy", "{\"maxReceiveCount\":\"1\",\"deadLetterTargetArn\":\"" + arn + "\"}")).getQueueUrl();
        sqs.sendMessage(new SendMessageRequest(url, "größe")
            .addMessageAttributesEntry("a", new MessageAttributeValue().withDataType("String").withStringValue("x"))
            .addMessageAttributesEntry("b", new MessageAttributeValue().withDataType("Binary")
                .withBinaryValue(ByteBuffer.wrap(new byte[] {0, (byte) 255}))));
        SendMessageBatchResult sent = sqs.sendMessageBatch(url, List.of(
            new SendMessageBatchRequestEntry("1", "one"), new SendMessageBatchRequestEntry("2", "\u0000")));
        told.put("sent", sent.getSuccessful().get(0).getId());
        told.put("failed", sent.getFailed().stream().map(BatchResultErrorEntry::getCode).toList());
        List<Message> got = new ArrayList<>();
        while (got.size() < 2) { // each waits for up to 20 seconds
            got.addAll(sqs.receiveMessage(new ReceiveMessageRequest(url).withMaxNumberOfMessages(10)
                .withWaitTimeSeconds(20).withMessageAttributeNames("All")).getMessages());
        }
        told.put("bodies", got.stream().map(Message::getBody).toList());
        Map<String, String> types = new TreeMap<>();
        got.get(0).getMessageAttributes().forEach((name, value) -> types.put(name, value.getDataType()));
        told.put("types", types);
        sqs.deleteMessageBatch(url, List.of(new DeleteMessageBatchRequestEntry("1", got.get(0).getReceiptHandle())));
        sqs.changeMessageVisibility(url, got.get(1).getReceiptHandle(), 0); // it was received as often as it may be
        Message died = sqs.receiveMessage(new ReceiveMessageRequest(dead).withWaitTimeSeconds(20)).getMessages().get(0);
        told.put("dead", died.getBody());
        sqs.deleteMessage(dead, died.getReceiptHandle());
        try {
            sqs.getQueueUrl("none");
        } catch (QueueDoesNotExistException refused) {
            told.put("refused", refused.getErrorCode());
        }
    }

    private static void fifo(AmazonSQS sqs, Map<String, Object> told) {
        String url = sqs.createQueue(new CreateQueueRequest("java.fifo").addAttributesEntry("FifoQueue", "true"))
            .getQueueUrl();
        List<String> numbers = new ArrayList<>();
        for (String body : List.of("first", "second", "second")) {
            numbers.add(sqs.sendMessage(new SendMessageRequest(url, body)
                .withMessageGroupId("g").withMessageDeduplicationId(body)).getSequenceNumber());
        }
        told.put("known again", numbers.get(1).equals(numbers.get(2)) && numbers.get(0).compareTo(numbers.get(1)) < 0);
        told.put("in order", sqs.receiveMessage(new ReceiveMessageRequest(url).withMaxNumberOfMessages(10))
            .getMessages().stream().map(Message::getBody).toList());
    }
}
