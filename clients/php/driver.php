<?php

// This client in the suite for thin clients: `crates/tenure-testkit/examples/thin_clients/driver.rs` has the protocol.
//
// It does one command after the other, and keeps what it holds between them: so does a program in PHP.

declare(strict_types=1);

// A copy that is broken on purpose comes first.
[, $client, $url] = $argv;
require $client;

$tenure = Tenure\Tenure::connect($url);
$leases = [];
$deliveries = [];

function say(string $key, string $text): void
{
    fwrite(STDOUT, "$key $text\n");
}

$granted = function (string $key, Tenure\Lease $lease) use (&$leases): string {
    $leases[$key] = $lease;
    $lease->onLost(fn () => say($key, 'told'));
    return "granted {$lease->token()}";
};

$done = function (string $command, string $key, string ...$words) use ($tenure, $granted, &$leases, &$deliveries): string {
    switch ($command) {
        case 'acquire':
            return $granted($key, $tenure->mutex($words[0], ttl: $words[1] / 1000)->acquire($words[2] / 1000));
        case 'try':
            $lease = $tenure->mutex($words[0], ttl: $words[1] / 1000)->tryAcquire();
            return $lease === null ? 'busy' : $granted($key, $lease);
        case 'check':
            try {
                $leases[$key]->check();
                return 'held';
            } catch (Tenure\LostException) {
                return 'lost';
            }
        case 'release':
            return $leases[$key]->release() ? 'released yes' : 'released no';
        case 'push':
            $tenure->queue($words[0])->push($words[1]);
            return 'pushed';
        case 'take':
            $deliveries[$key] = $tenure->queue($words[0], ttl: $words[1] / 1000)->take($words[2] / 1000);
            return $deliveries[$key] === null ? 'nothing' : "taken {$deliveries[$key]->payload}";
        case 'ack':
            $deliveries[$key]->ack();
            return 'settled';
        case 'close':
            $tenure->close();
            return 'closed';
        default:
            return 'failed unknown';
    }
};

for (;;) {
    $ready = [STDIN];
    $none = [];
    if (stream_select($ready, $none, $none, 0, 20_000) === 0) {
        $tenure->keep();
        continue;
    }
    $line = fgets(STDIN);
    if ($line === false || trim($line) === 'exit') {
        exit(0);
    }
    $words = explode(' ', trim($line));
    try {
        say($words[1], $done(...$words));
    } catch (Tenure\TenureException $error) {
        say($words[1], "failed {$error->kind}");
    }
    // Many commands in a row must not keep it from this.
    $tenure->keep();
}
