// Publishes and closes in one go, as many programs do. Takes a URL, a queue, a number and whether to close the channel
// first; prints what came of it as one line of JSON.
import { connect } from "amqplib";

const [url, queue, number, first] = process.argv.slice(2);
const connection = await connect(url);
const channel = await connection.createChannel();
await channel.assertQueue(queue, { durable: true });
const body = Buffer.alloc(1024);
for (let each = 0; each < Number(number); each++) {
  channel.sendToQueue(queue, body, { persistent: true });
}
let error = null;
connection.on("error", (seen) => { error = String(seen); });
if (first === "channel") await channel.close();
await connection.close();
console.log(JSON.stringify({ closed: true, error }));
