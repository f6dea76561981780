package main

import (
	"context"
	"fmt"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/client-go/kubernetes"
)

const podsLimit = 3 * time.Minute

// podsSeen are the pods that were as wanted once.
type podsSeen struct {
	*follower
	at   map[string]time.Time
	gone map[string]time.Time
}

// watchPods notes when each pod is first as wanted, and when it is gone.
func watchPods(ctx context.Context, client kubernetes.Interface, which fields.Selector, wanted func(*corev1.Pod) bool) (*podsSeen, func()) {
	s := &podsSeen{at: map[string]time.Time{}, gone: map[string]time.Time{}}
	note := func(m map[string]time.Time, name string) {
		if _, known := m[name]; !known {
			m[name] = time.Now()
		}
	}
	s.follower = follow(ctx, client.CoreV1().RESTClient(), "pods", namespace, which, func(p *corev1.Pod, gone bool) {
		switch {
		case gone:
			note(s.gone, p.Name)
		case wanted(p):
			note(s.at, p.Name)
		}
	})
	return s, s.stop
}

// await waits until n pods were as wanted.
func (s *podsSeen) await(ctx context.Context, n int) error {
	return s.until(ctx, podsLimit, func() (string, bool) { return fmt.Sprintf("%d pods of %d", len(s.at), n), len(s.at) >= n })
}

// when waits until one pod was as wanted, or gone.
func (s *podsSeen) when(ctx context.Context, m map[string]time.Time, name string) (at time.Time, err error) {
	err = s.until(ctx, podsLimit, func() (string, bool) { at = m[name]; return "pod " + name, !at.IsZero() })
	return at, err
}
