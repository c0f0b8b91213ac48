// What a program does with the AWS SDK for JavaScript: node talk.mjs URL
import {
  CreateQueueCommand, DeleteMessageCommand, GetQueueAttributesCommand, GetQueueUrlCommand, ReceiveMessageCommand,
  SendMessageBatchCommand, SendMessageCommand, SQSClient,
} from "@aws-sdk/client-sqs";

const credentials = { accessKeyId: "any", secretAccessKey: "any" };
const sqs = new SQSClient({ endpoint: process.argv[2], region: "us-east-1", credentials });
const { QueueUrl } = await sqs.send(new CreateQueueCommand({ QueueName: "q" }));
const MessageAttributes = {
  a: { DataType: "String", StringValue: "x" },
  b: { DataType: "Binary", BinaryValue: new Uint8Array([1, 255]) },
};
await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "größe", MessageAttributes }));
const Entries = [{ Id: "1", MessageBody: "one" }, { Id: "2", MessageBody: "\u0000" }];
const batch = await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries }));
const receive = { QueueUrl, MaxNumberOfMessages: 10, WaitTimeSeconds: 5, MessageAttributeNames: ["All"] };
const Messages = [];
while (Messages.length < 2) { // one receive may bring fewer than there are
  Messages.push(...((await sqs.send(new ReceiveMessageCommand(receive))).Messages ?? []));
}
for (const { ReceiptHandle } of Messages) {
  await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle }));
}
const AttributeNames = ["ApproximateNumberOfMessagesNotVisible"];
const { Attributes } = await sqs.send(new GetQueueAttributesCommand({ QueueUrl, AttributeNames }));
let refused = "";
try {
  await sqs.send(new GetQueueUrlCommand({ QueueName: "none" }));
} catch (error) {
  refused = error.name;
}
const types = Object.entries(Messages[0].MessageAttributes).map(([name, { DataType }]) => [name, DataType]);
console.log(JSON.stringify({
  sent: batch.Successful.map(({ Id }) => Id),
  failed: batch.Failed.map(({ Code }) => Code),
  bodies: Messages.map(({ Body }) => Body),
  types: Object.fromEntries(types),
  left: Number(Attributes[AttributeNames[0]]),
  refused,
}));
