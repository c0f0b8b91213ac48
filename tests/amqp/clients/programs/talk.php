<?php
// What a program in PHP does with php-amqplib. Takes host, port and a queue, prints what it saw as one line of JSON.
require "PhpAmqpLib/autoload.php";

use PhpAmqpLib\Connection\AMQPStreamConnection;
use PhpAmqpLib\Exception\AMQPProtocolChannelException;
use PhpAmqpLib\Message\AMQPMessage;
use PhpAmqpLib\Wire\AMQPTable;

[, $host, $port, $queue] = $argv;
$seen = [];
$connection = new AMQPStreamConnection($host, $port, "guest", "guest");
$channel = $connection->channel();
$channel->confirm_select();
$acked = 0;
$channel->set_ack_handler(function () use (&$acked) { $acked++; });
$channel->queue_declare($queue, false, true, false, false, false, new AMQPTable(["x-max-priority" => 3]));

foreach (range(0, 49) as $number) {
    $headers = new AMQPTable(["number" => $number, "deep" => ["list" => [1, "x"]]]);
    $properties = ["delivery_mode" => 2, "content_type" => "text/plain", "application_headers" => $headers];
    $channel->basic_publish(new AMQPMessage("$number", $properties), "", $queue);
}
$channel->wait_for_pending_acks(10);
$seen["acked"] = $acked;

$got = [];
$channel->basic_qos(null, 10, false);
$channel->basic_consume($queue, "reader", false, false, false, false, function ($message) use (&$got, &$seen) {
    $got[] = (int) $message->body;
    $seen["headers"] ??= $message->get("application_headers")->getNativeData();
    $message->ack();
}, null, new AMQPTable(["x-priority" => 5]));
while (count($got) < 50) {
    $channel->wait(null, false, 10);
}
$channel->basic_cancel("reader");
$seen["inOrder"] = $got === range(0, 49);

$channel->basic_publish(new AMQPMessage(str_repeat("b", 1000000)), "", $queue);
$channel->wait_for_pending_acks(10);
$back = $channel->basic_get($queue);
$back->nack(true);
$again = $channel->basic_get($queue);
$seen["redelivered"] = [$back->isRedelivered(), $again->isRedelivered(), strlen($again->body)];
$again->reject(false);

$returned = null;
$channel->set_return_listener(function ($code) use (&$returned) { $returned = $code; });
$channel->basic_publish(new AMQPMessage("x"), "", "$queue-none", true);
$channel->wait_for_pending_acks_returns(10);
$seen["returned"] = $returned;

$other = $connection->channel();
$other->tx_select();
$other->basic_publish(new AMQPMessage("rolled back"), "", $queue);
$other->tx_rollback();
$other->basic_publish(new AMQPMessage("committed"), "", $queue);
$other->tx_commit();
$seen["committed"] = $other->basic_get($queue, true)->body;
try {
    $other->queue_declare("$queue-none", true);
} catch (AMQPProtocolChannelException $error) {
    $seen["refused"] = $error->amqp_reply_code;
}
$channel->queue_delete($queue);
$connection->close();
echo json_encode($seen), "\n";
