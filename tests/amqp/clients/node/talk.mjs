// What a program on Node does with amqplib. Takes a URL and a queue, prints what it saw as one line of JSON.
import { connect } from "amqplib";

const [url, queue] = process.argv.slice(2);
const seen = {};
const connection = await connect(url);
const channel = await connection.createConfirmChannel();

seen.declared = (await channel.assertQueue(queue, { durable: true })).queue === queue;

const sent = Array.from({ length: 200 }, (_, number) => number);
await Promise.all(
  sent.map((number) =>
    new Promise((resolve, reject) =>
      channel.sendToQueue(
        queue,
        Buffer.from(String(number)),
        { persistent: true, contentType: "text/plain", headers: { number, deep: { list: [1, "x", true] } } },
        (error) => (error ? reject(error) : resolve()),
      ),
    ),
  ),
);
seen.waiting = (await channel.checkQueue(queue)).messageCount;

await channel.prefetch(10);
const got = [];
await new Promise((resolve) => {
  channel.consume(queue, (message) => {
    got.push(Number(message.content));
    seen.headers ??= message.properties.headers;
    seen.persistent ??= message.properties.deliveryMode === 2;
    channel.ack(message);
    if (got.length === sent.length) resolve();
  }, { consumerTag: "reader" });
});
seen.inOrder = got.every((number, place) => number === place);
await channel.cancel("reader");
seen.empty = (await channel.get(queue)) === false;

const big = Buffer.alloc(1_000_000, "b");
await new Promise((resolve) => channel.sendToQueue(queue, big, {}, resolve));
const back = await channel.get(queue);
seen.big = back.content.equals(big);
channel.nack(back);
const again = await channel.get(queue);
seen.redelivered = [back.fields.redelivered, again.fields.redelivered];
channel.reject(again, false);

const { exchange } = await channel.assertExchange(`${queue}-x`, "topic", { autoDelete: true });
await channel.bindQueue(queue, exchange, "a.*");
channel.publish(exchange, "b.c", Buffer.from("not here"));
channel.publish(exchange, "a.c", Buffer.from("here"));
await channel.waitForConfirms();
seen.routed = (await channel.get(queue, { noAck: true })).content.toString();
seen.nothingElse = (await channel.get(queue)) === false;

const returned = new Promise((resolve) => channel.once("return", resolve));
channel.sendToQueue(`${queue}-none`, Buffer.from("x"), { mandatory: true });
seen.returned = (await returned).fields.replyText;

const refused = await connection.createChannel();
refused.on("error", () => {});
seen.refused = await refused.checkQueue(`${queue}-none`).then(() => 0, (error) => error.code);

await channel.deleteQueue(queue);
await connection.close();
console.log(JSON.stringify(seen));
