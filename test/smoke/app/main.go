// Command app is what the smoke test's containers run: a web server that names
// itself and its version, reports whether it is healthy, and ends gracefully; or a
// client that asks a server for a while and counts what failed.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"os/signal"
	"sync/atomic"
	"syscall"
	"time"
)

func main() {
	version := flag.String("version", "1", "what / answers with")
	load := flag.String("load", "", "ask this URL instead of serving")
	get := flag.String("get", "", "ask this URL once and print the answer")
	every := flag.Duration("every", 5*time.Millisecond, "time between questions")
	flag.Parse()
	if *load != "" {
		ask(*load, *every)
		return
	}
	if *get != "" {
		if err := once(*get); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		return
	}
	serve(*version)
}

func once(url string) error {
	client := &http.Client{Timeout: 5 * time.Second}
	resp, err := client.Get(url)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	_, err = io.Copy(os.Stdout, resp.Body)
	return err
}

func serve(version string) {
	host, _ := os.Hostname()
	var sick atomic.Bool
	mux := http.NewServeMux()
	mux.HandleFunc("/", func(w http.ResponseWriter, _ *http.Request) { fmt.Fprintf(w, "version=%s host=%s\n", version, host) })
	mux.HandleFunc("/healthz", func(w http.ResponseWriter, _ *http.Request) {
		if sick.Load() {
			w.WriteHeader(http.StatusInternalServerError)
		}
	})
	mux.HandleFunc("/sicken", func(http.ResponseWriter, *http.Request) { sick.Store(true) })
	srv := &http.Server{Addr: ":8080", Handler: mux, ReadHeaderTimeout: 5 * time.Second}
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM)
	defer stop()
	fmt.Println("serving version", version)
	go func() {
		<-ctx.Done()
		// Endpoints learn of the end a moment after the process does.
		time.Sleep(500 * time.Millisecond)
		done, cancel := context.WithTimeout(context.Background(), 5*time.Second)
		defer cancel()
		_ = srv.Shutdown(done)
	}()
	if err := srv.ListenAndServe(); err != http.ErrServerClosed {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}

// ask puts a new connection to url again and again until SIGTERM, then says
// how many answers came and how many failed.
func ask(url string, every time.Duration) {
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, syscall.SIGINT)
	defer stop()
	// Longer than a resolver waits before it asks again: a query that was in the
	// DNS server's socket when that was killed is lost, as any datagram may be.
	client := &http.Client{Timeout: 15 * time.Second, Transport: &http.Transport{
		DisableKeepAlives: true, DialContext: (&net.Dialer{Timeout: 12 * time.Second}).DialContext,
	}}
	good, bad := 0, 0
	report := func() { fmt.Printf("good=%d bad=%d\n", good, bad) }
	last := time.Now()
	for ctx.Err() == nil {
		resp, err := client.Get(url)
		if err == nil {
			_, err = io.Copy(io.Discard, resp.Body)
			resp.Body.Close()
			if err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("status %d", resp.StatusCode)
			}
		}
		if err != nil {
			bad++
			fmt.Println("failed:", err)
		} else {
			good++
		}
		if time.Since(last) > 100*time.Millisecond {
			report()
			last = time.Now()
		}
		time.Sleep(every)
	}
	report()
}
