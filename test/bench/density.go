package main

import (
	"context"
	"fmt"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
)

var densityLines = []line{
	{"500 pods on a node: the first hundred to Ready", "/s", true, 0},
	{"500 pods on a node: the last hundred to Ready", "/s", true, 0},
	{"500 pods on a node: CPU of all processes for one of the first hundred", "ms", false, 0},
	{"500 pods on a node: CPU of all processes for one of the last hundred", "ms", false, 0},
	{"500 pods on a node: memory of all processes but theirs, shared pages by share", "MB", false, 0},
}

const (
	// hundred pods are made at once, the next ones when these are Ready,
	hundred = 100
	// so many times on one node.
	hundreds = 5
)

// runDensity fills a node with more pods than it takes by default.
func runDensity(ctx context.Context, r *run) error {
	large, with := *r, *r.e
	with.programs.PodsOfNode, large.e = r.count(hundred)*hundreds+10, &with
	c, _, err := large.node(ctx)
	if err != nil {
		return err
	}
	defer c.Stop()
	if err := c.Load(r.e.programs, r.e.image); err != nil {
		return err
	}
	client, err := c.Client()
	if err != nil {
		return err
	}
	if err := prepare(ctx, client); err != nil {
		return err
	}
	seen, stop := watchPods(ctx, client, fields.Everything(), podReady)
	defer stop()
	pods, n := client.CoreV1().Pods(namespace), r.count(hundred)
	var rates, cpu []float64
	for i := range hundreds {
		began, before := time.Now(), c.CPUOfNode()
		if _, _, err := each(ctx, clients, n, func(ctx context.Context, k int) error {
			_, err := pods.Create(ctx, sleepingPod(i*n+k), metav1.CreateOptions{})
			return err
		}); err != nil {
			return err
		}
		if err := seen.await(ctx, (i+1)*n); err != nil {
			return fmt.Errorf("the hundred number %d: %w", i+1, err)
		}
		rates = append(rates, float64(n)/time.Since(began).Seconds())
		cpu = append(cpu, float64((c.CPUOfNode()-before).Milliseconds())/float64(n))
	}
	r.put("500 pods on a node: the first hundred to Ready", rates[0])
	r.put("500 pods on a node: the last hundred to Ready", rates[hundreds-1])
	r.put("500 pods on a node: CPU of all processes for one of the first hundred", cpu[0])
	r.put("500 pods on a node: CPU of all processes for one of the last hundred", cpu[hundreds-1])
	share, err := c.Share()
	if err != nil {
		return err
	}
	r.put("500 pods on a node: memory of all processes but theirs, shared pages by share", float64(share)/1e6)
	if err := removeAll(ctx, pods, seen, hundreds*n); err != nil {
		return err
	}
	return c.Alive()
}
