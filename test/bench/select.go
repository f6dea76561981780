package main

import (
	"context"
	"fmt"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

var selectLines = []line{
	{"list selecting nothing of 300,000 ConfigMaps, p50", "ms", false, 0},
	{"list selecting nothing of 300,000 ConfigMaps, p99", "ms", false, 0},
	{"list selecting nothing of 300,000 ConfigMaps, server CPU", "µs", false, 0},
	{"memory with 300,000 ConfigMaps", "MB", false, 0},
}

// runSelect lists with a label selector that matches nothing among very many
// objects: KEP-2340's workload.
func runSelect(ctx context.Context, r *run) error {
	c, client, err := r.startPrepared(ctx, false)
	if err != nil {
		return err
	}
	defer c.Stop()
	maps := client.CoreV1().ConfigMaps(namespace)
	n := r.count(300_000)
	if _, _, err := each(ctx, 2*clients, n, func(ctx context.Context, i int) error {
		_, err := maps.Create(ctx, &corev1.ConfigMap{
			ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("map-%06d", i), Labels: map[string]string{"app": fmt.Sprint("app-", i%100)}},
			Data:       map[string]string{"key": fmt.Sprint(i)},
		}, metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	find := func(ctx context.Context, selector string) (int, error) {
		list, err := maps.List(ctx, metav1.ListOptions{LabelSelector: selector})
		if err != nil {
			return 0, err
		}
		return len(list.Items), nil
	}
	if got, err := find(ctx, "app=app-7"); err != nil || got != n/100 && n >= 100 {
		return fmt.Errorf("app=app-7 selects %d of %d: %w", got, n, err)
	}
	const lists = 500
	before, err := c.CPU()
	if err != nil {
		return err
	}
	_, took, err := each(ctx, 1, lists, func(ctx context.Context, i int) error {
		got, err := find(ctx, "app=nothing")
		if err == nil && got != 0 {
			err = fmt.Errorf("%d objects were selected", got)
		}
		return err
	})
	if err != nil {
		return err
	}
	after, err := c.CPU()
	if err != nil {
		return err
	}
	r.put(selectLines[0].name, quantile(took, 0.5))
	r.put(selectLines[1].name, quantile(took, 0.99))
	r.put(selectLines[2].name, float64((after-before).Microseconds())/lists)
	now, _ := c.Memory()
	r.put(selectLines[3].name, float64(now)/1e6)
	return c.Alive()
}
