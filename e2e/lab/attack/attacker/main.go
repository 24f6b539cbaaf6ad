// Command attacker is the workload that attacks, see package attack. It has no libraries, so its image needs nothing
// else:
//
//	attacker wait          do nothing, as a container's first process
//	attacker fire          make the attempts on stdin, a JSON list, and print the results
//	attacker hold          open the connections on stdin, a JSON list, and send into each every 5 ms until stdin ends
//	attacker start         make the attempts in ATTEMPTS again and again from the first instruction on, a second each
//	attacker escape        try to get out of the container's network, and print what came of it
//	attacker flood         ask the name server in ASK for names that are never the same, for two seconds; with ITSELF for one name in all ways
//	attacker suicide       end this container's first process
package main

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"os"
	"os/signal"
	"sync"
	"syscall"
	"time"

	"sluice/e2e/lab/attack"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, os.Args[1:]); err != nil {
		fmt.Fprintln(os.Stderr, "attacker:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string) error {
	if len(args) != 1 {
		return errors.New("usage: attacker wait|fire|hold|start|escape|flood|suicide")
	}
	switch args[0] {
	case "wait":
		<-ctx.Done()
		return nil
	case "fire":
		return onAttempts(os.Stdin, func(all []attack.Attempt) error {
			return json.NewEncoder(os.Stdout).Encode(attack.Fire(ctx, all))
		})
	case "hold":
		return onAttempts(os.Stdin, func(all []attack.Attempt) error { return hold(ctx, all, os.Stdin) })
	case "start":
		var all []attack.Attempt
		if err := json.Unmarshal([]byte(os.Getenv("ATTEMPTS")), &all); err != nil {
			return fmt.Errorf("ATTEMPTS: %w", err)
		}
		return start(ctx, all)
	case "escape":
		return json.NewEncoder(os.Stdout).Encode(attack.Escapes())
	case "flood":
		asked, err := attack.Flood(ctx, os.Getenv("ASK"), os.Getenv("ZONE"), os.Getenv("ITSELF") != "")
		if err != nil {
			return err
		}
		_, err = fmt.Println(asked)
		return err
	case "suicide":
		return syscall.Kill(1, syscall.SIGTERM)
	}
	return fmt.Errorf("unknown command %q", args[0])
}

func onAttempts(r io.Reader, do func([]attack.Attempt) error) error {
	var all []attack.Attempt
	if err := json.NewDecoder(r).Decode(&all); err != nil {
		return fmt.Errorf("attempts: %w", err)
	}
	return do(all)
}

// holdEvery is the time between two messages of a held connection.
const holdEvery = 5 * time.Millisecond

// hold opens the connections and sends into them until stdin ends, whatever errors come.
func hold(ctx context.Context, all []attack.Attempt, stdin io.Reader) error {
	ctx, cancel := context.WithCancel(ctx)
	defer cancel()
	var running sync.WaitGroup
	for _, a := range all {
		running.Go(func() { holdOne(ctx, &a) })
	}
	_, err := io.Copy(io.Discard, stdin)
	cancel()
	running.Wait()
	return err
}

func holdOne(ctx context.Context, a *attack.Attempt) {
	var conn net.Conn
	defer func() {
		if conn != nil {
			conn.Close()
		}
	}()
	ticker := time.NewTicker(holdEvery)
	defer ticker.Stop()
	for ctx.Err() == nil {
		if conn == nil {
			conn, _ = a.Dial(ctx) // it is tried again
		}
		if conn != nil {
			conn.Write(a.Send[0]) // into the first connection, also when it is broken
		}
		<-ticker.C
	}
}

// start makes the attempts as fast as it can, and prints the results of each second as a line.
func start(ctx context.Context, all []attack.Attempt) error {
	output := json.NewEncoder(os.Stdout)
	for ctx.Err() == nil {
		output.Encode(attack.Fire(ctx, all))
		select {
		case <-ctx.Done():
		case <-time.After(10 * time.Millisecond):
		}
	}
	return nil
}
