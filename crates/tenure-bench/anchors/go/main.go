// One side of the comparison in a process of its own: compare.py says what its arguments and its lines are.
package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"net/url"
	"os"
	"strconv"
	"sync"
	"time"

	"github.com/go-redsync/redsync/v4"
	"github.com/go-redsync/redsync/v4/redis/goredis/v9"
	"github.com/redis/go-redis/v9"
)

type tally struct {
	sync.Mutex
	Holds     []int   `json:"holds"`
	Changes   int     `json:"changes"`
	LongestMs float64 `json:"longest_ms"`
	last      int
	asked     []time.Time
}

func (t *tally) asks(worker int) {
	t.Lock()
	defer t.Unlock()
	t.asked[worker] = time.Now()
}

func (t *tally) holds(worker int) {
	t.Lock()
	defer t.Unlock()
	t.longest(worker)
	t.asked[worker] = time.Time{}
	t.Holds[worker]++
	if t.last != worker {
		t.last = worker
		t.Changes++
	}
}

func (t *tally) longest(worker int) {
	if since := t.asked[worker]; !since.IsZero() {
		t.LongestMs = max(t.LongestMs, float64(time.Since(since).Microseconds())/1000)
	}
}

// count says what there is now. Waits that still go on count as far as they have come.
func (t *tally) count() string {
	t.Lock()
	defer t.Unlock()
	for worker := range t.asked {
		t.longest(worker)
	}
	text, err := json.Marshal(t)
	check(err)
	t.LongestMs = 0
	return string(text)
}

func check(err error) {
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

func main() {
	work := os.Args[2]
	workers, err := strconv.Atoi(os.Args[3])
	check(err)
	ttl, err := time.ParseDuration(os.Args[4] + "ms")
	check(err)
	address, err := url.Parse(os.Args[5])
	check(err)
	name := os.Args[6]
	locks := redsync.New(goredis.NewPool(redis.NewClient(&redis.Options{Addr: address.Host, PoolSize: workers})))
	// It gives up after 32 attempts unless it is told otherwise.
	mutex := func(name string) *redsync.Mutex {
		return locks.NewMutex(name, redsync.WithExpiry(ttl), redsync.WithTries(1<<30))
	}
	lines := bufio.NewScanner(os.Stdin)
	if work == "hold" {
		fmt.Println("ready")
		lines.Scan()
		check(mutex(name).Lock())
		fmt.Println("held")
		lines.Scan()
		return
	}
	all := &tally{Holds: make([]int, workers), asked: make([]time.Time, workers), last: -1}
	for worker := range workers {
		lock := mutex(name)
		if work == "pairs" {
			lock = mutex(fmt.Sprintf("%s/%d", name, worker))
		}
		go func() {
			for {
				all.asks(worker)
				check(lock.Lock())
				all.holds(worker)
				if _, err := lock.Unlock(); err != nil {
					check(err)
				}
			}
		}()
	}
	fmt.Println("ready")
	for lines.Scan() {
		fmt.Println(all.count())
	}
}
