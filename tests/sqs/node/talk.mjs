// What a program does with the AWS SDK for JavaScript, as tests/sqs/talk.py does: node talk.mjs URL
import { createInterface } from "node:readline/promises";
import { setTimeout as sleep } from "node:timers/promises";
import {
  ChangeMessageVisibilityCommand, CreateQueueCommand, DeleteMessageBatchCommand, DeleteMessageCommand,
  GetQueueAttributesCommand, GetQueueUrlCommand, ReceiveMessageCommand, SendMessageBatchCommand, SendMessageCommand,
  SQSClient,
} from "@aws-sdk/client-sqs";

const credentials = { accessKeyId: "any", secretAccessKey: "any" };
const sqs = new SQSClient({ endpoint: process.argv[2], region: "us-east-1", credentials });
const told = {};

async function make(QueueName, Attributes) {
  return (await sqs.send(new CreateQueueCommand({ QueueName, Attributes }))).QueueUrl;
}

async function receive(QueueUrl, count) {
  const found = [];
  while (found.length < count) { // one receive may bring fewer than there are
    const MaxNumberOfMessages = count - found.length;
    const given = { QueueUrl, MaxNumberOfMessages, WaitTimeSeconds: 20, MessageAttributeNames: ["All"] };
    found.push(...((await sqs.send(new ReceiveMessageCommand(given))).Messages ?? []));
  }
  return found;
}

async function receiveOverAKill(QueueUrl) {
  for (;;) {
    try {
      return (await receive(QueueUrl, 1))[0];
    } catch (error) {
      if (error.$metadata?.httpStatusCode) throw error; // the daemon answered: that is no connection that went
      await sleep(200);
    }
  }
}

async function sendInOrder(QueueUrl, body) {
  const known = { MessageGroupId: "g", MessageDeduplicationId: body };
  return (await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: body, ...known }))).SequenceNumber;
}

const dead = await make("dead");
const asked = { QueueUrl: dead, AttributeNames: ["QueueArn"] };
const deadLetterTargetArn = (await sqs.send(new GetQueueAttributesCommand(asked))).Attributes.QueueArn;
const RedrivePolicy = JSON.stringify({ deadLetterTargetArn, maxReceiveCount: "1" });
const QueueUrl = await make("q", { RedrivePolicy, VisibilityTimeout: "600" });
const fifo = await make("q.fifo", { FifoQueue: "true", VisibilityTimeout: "600" });
const waitedAt = await make("waited-at");

const waiting = receive(QueueUrl, 1);
await sleep(500); // it is on its way; too early would show no less than it does
await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "hello" }));
const [hello] = await waiting;
await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: hello.ReceiptHandle }));
told["waited for"] = hello.Body;

const MessageAttributes = {
  a: { DataType: "String", StringValue: "x" },
  b: { DataType: "Binary", BinaryValue: new Uint8Array([1, 255]) },
};
await sqs.send(new SendMessageCommand({ QueueUrl, MessageBody: "größe", MessageAttributes }));
const sent = [{ Id: "1", MessageBody: "one" }, { Id: "2", MessageBody: "\u0000" }, { Id: "3", MessageBody: "two" }];
const batch = await sqs.send(new SendMessageBatchCommand({ QueueUrl, Entries: sent }));
told.sent = batch.Successful.map(({ Id }) => Id);
told.failed = batch.Failed.map(({ Code }) => Code);
const leased = await receive(QueueUrl, 2);
told.bodies = leased.map(({ Body }) => Body);
const types = Object.entries(leased[0].MessageAttributes).map(([name, { DataType }]) => [name, DataType]);
told.types = Object.fromEntries(types);
const numbers = [await sendInOrder(fifo, "first"), await sendInOrder(fifo, "second")];
const [first] = await receive(fifo, 1);
told.first = first.Body;

const waitingOverIt = receiveOverAKill(waitedAt);
const lines = createInterface({ input: process.stdin });
console.log("kill");
await lines.question("");
lines.close();

const Entries = [{ Id: "1", ReceiptHandle: leased[0].ReceiptHandle }];
const deleted = await sqs.send(new DeleteMessageBatchCommand({ QueueUrl, Entries }));
told.deleted = deleted.Successful.map(({ Id }) => Id);
const again = { QueueUrl, ReceiptHandle: leased[1].ReceiptHandle, VisibilityTimeout: 0 };
await sqs.send(new ChangeMessageVisibilityCommand(again)); // it was received as often as it may be
told.dead = (await receive(dead, 1))[0].Body;
const [kept] = await receive(QueueUrl, 1);
await sqs.send(new DeleteMessageCommand({ QueueUrl, ReceiptHandle: kept.ReceiptHandle }));
told.kept = kept.Body;
numbers.push(await sendInOrder(fifo, "second"), await sendInOrder(fifo, "third"));
told["known again"] = numbers[1] === numbers[2] && numbers[0] < numbers[1] && numbers[1] < numbers[3];
const held = await sqs.send(new ReceiveMessageCommand({ QueueUrl: fifo }));
told["while the first is out"] = (held.Messages ?? []).length;
await sqs.send(new DeleteMessageCommand({ QueueUrl: fifo, ReceiptHandle: first.ReceiptHandle }));
told["in order"] = (await receive(fifo, 2)).map(({ Body }) => Body);
await sqs.send(new SendMessageCommand({ QueueUrl: waitedAt, MessageBody: "again" }));
told["waited for over the kill"] = (await waitingOverIt).Body;
const AttributeNames = ["ApproximateNumberOfMessages", "ApproximateNumberOfMessagesNotVisible"];
const { Attributes } = await sqs.send(new GetQueueAttributesCommand({ QueueUrl, AttributeNames }));
told.left = AttributeNames.reduce((sum, name) => sum + Number(Attributes[name]), 0);
try {
  await sqs.send(new GetQueueUrlCommand({ QueueName: "none" }));
} catch (error) {
  told.refused = error.name;
}
console.log(JSON.stringify(told));
