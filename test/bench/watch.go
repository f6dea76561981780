package main

import (
	"bufio"
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes/scheme"
	"k8s.io/client-go/rest"
)

const watchers = 200

var watchLines = []line{
	{"watch, 200 watchers, events delivered", "/s", true, 0},
	{"watch, server CPU per event", "µs", false, 5},
	{"watch, one change to a watcher, p50", "ms", false, 0},
	{"watch, one change to a watcher, p99", "ms", false, 0},
}

// runWatch lets 200 watchers see every change of 100 pods. Watchers count
// frames: decoding them would measure the client.
func runWatch(ctx context.Context, r *run) error {
	c, client, err := r.startPrepared(ctx, false)
	if err != nil {
		return err
	}
	defer c.Stop()
	pods := client.CoreV1().Pods(namespace)
	name := func(i int) string { return fmt.Sprintf("pod-%03d", i%100) }
	for i := range 100 {
		if _, err := pods.Create(ctx, pod(name(i)), metav1.CreateOptions{}); err != nil {
			return err
		}
	}
	list, err := pods.List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	ctx, cancel := context.WithCancelCause(ctx)
	defer cancel(nil)
	f := &frames{arrived: make(chan struct{}, 1)}
	cfg, err := c.Config()
	if err != nil {
		return err
	}
	var wg sync.WaitGroup
	defer wg.Wait()
	defer cancel(nil)
	for range watchers {
		// A connection for every fifty watches, as many clients would have.
		if f.n%50 == 0 {
			if client, err = newClient(cfg); err != nil {
				return err
			}
		}
		f.n++
		of := client.CoreV1().RESTClient()
		open := func() (io.ReadCloser, error) {
			return of.Get().Namespace(namespace).Resource("pods").
				VersionedParams(&metav1.ListOptions{Watch: true, ResourceVersion: list.ResourceVersion}, scheme.ParameterCodec).Stream(ctx)
		}
		body, err := open()
		if err != nil {
			return fmt.Errorf("watch: %w", err)
		}
		wg.Go(func() {
			if err := f.follow(body, open); err != nil && ctx.Err() == nil {
				cancel(fmt.Errorf("watcher: %w", err))
			}
		})
	}
	patch := func(ctx context.Context, i int) error {
		_, err := pods.Patch(ctx, name(i), types.MergePatchType, fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, i), metav1.PatchOptions{})
		return err
	}
	n := r.count(2000)
	profiled := r.profile(ctx, c, "watch")
	defer profiled()
	took, cpu, err := r.alternate(ctx, c, n, func(from, to int) error {
		// Upstream ends watches that fall behind: few writers, so that hardly one does.
		if _, _, err := each(ctx, 4, to-from, func(ctx context.Context, i int) error { return patch(ctx, from+i) }); err != nil {
			return err
		}
		return f.await(ctx, int64(to*watchers))
	})
	if err != nil {
		return err
	}
	r.put("watch, 200 watchers, events delivered", float64(n*watchers)/took.Seconds())
	r.put("watch, server CPU per event", float64(cpu.Microseconds())/float64(n*watchers))

	// One change at a time: how long until each watcher has it.
	var all []time.Duration
	if _, _, err := r.alternate(ctx, c, r.count(1500), func(from, to int) error {
		for i := from; i < to; i++ {
			f.mark(time.Now(), &all)
			if err := patch(ctx, i); err != nil {
				return err
			}
			if err := f.await(ctx, int64((n+i+1)*watchers)); err != nil {
				return err
			}
		}
		return nil
	}); err != nil {
		return err
	}
	r.put("watch, one change to a watcher, p50", quantile(all, 0.5))
	r.put("watch, one change to a watcher, p99", quantile(all, 0.99))
	return nil
}

func newClient(cfg *rest.Config) (*clientset, error) {
	own := rest.CopyConfig(cfg)
	own.Dial = dialer() // a dialer of its own has connections of its own
	return clientFor(own)
}

// frames counts the frames that all watchers read.
type frames struct {
	n       int
	count   atomic.Int64
	arrived chan struct{}

	mu    sync.Mutex
	since time.Time
	took  *[]time.Duration
}

// mark has the frames from now on timed.
func (f *frames) mark(t time.Time, took *[]time.Duration) {
	f.mu.Lock()
	f.since, f.took = t, took
	f.mu.Unlock()
}

// follow reads a watch, and opens it again when the server ends it: what had been
// seen comes again then, and is not counted twice.
func (f *frames) follow(body io.ReadCloser, open func() (io.ReadCloser, error)) error {
	for seen := 0; ; {
		n, err := f.read(bufio.NewReaderSize(body, 16<<10), seen)
		body.Close()
		if !errors.Is(err, io.EOF) && !errors.Is(err, io.ErrUnexpectedEOF) {
			return err
		}
		seen = max(seen, n)
		if body, err = open(); err != nil {
			return err
		}
	}
}

// read takes length-prefixed frames, the form of watches in protobuf, and counts
// those after the first seen ones. It returns how many came.
func (f *frames) read(body *bufio.Reader, seen int) (n int, err error) {
	var size [4]byte
	for ; ; n++ {
		if _, err := io.ReadFull(body, size[:]); err != nil {
			return n, err
		}
		if _, err := body.Discard(int(binary.BigEndian.Uint32(size[:]))); err != nil {
			return n, err
		}
		if n < seen {
			continue
		}
		f.mu.Lock()
		if f.took != nil {
			*f.took = append(*f.took, time.Since(f.since))
		}
		f.mu.Unlock()
		f.count.Add(1)
		select {
		case f.arrived <- struct{}{}:
		default:
		}
	}
}

// await waits for exactly so many frames.
func (f *frames) await(ctx context.Context, want int64) error {
	limit := time.After(2 * time.Minute)
	for f.count.Load() < want {
		select {
		case <-f.arrived:
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-limit:
			return fmt.Errorf("%d events of %d arrived", f.count.Load(), want)
		}
	}
	if got := f.count.Load(); got > want {
		return fmt.Errorf("%d events arrived, %d were made", got, want)
	}
	return nil
}
