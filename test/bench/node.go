package main

import (
	"context"
	"fmt"
	"path/filepath"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	corev1client "k8s.io/client-go/kubernetes/typed/core/v1"

	"knarr/test/bench/rig"
)

var nodeLines = append([]line{
	{"start to a Ready node", "ms", false, 0},
	{"idle memory, all processes", "MB", false, 6},
	{"idle CPU", "% of a core", false, 0},
	{"warm pod, create call to Ready seen on a watch, p50", "ms", false, 2.5},
	{"60 pods at once, until all are Ready", "s", false, 3},
	{"pod that exits at once on SIGTERM, delete call to object gone", "ms", false, 7},
	{"20 such pods in a row", "ms", false, 0},
}, idlePodsLines...)

const idleTime = 60 * time.Second

// nodeStarts are how often a cluster of one node is started; the last is used
// for all else.
const nodeStarts = 3

// bursts are how often the pods are made all at once.
const bursts = 3

// runNode runs real pods on a whole cluster of one node.
func runNode(ctx context.Context, r *run) error {
	var took []time.Duration
	for range nodeStarts - 1 {
		c, at, err := r.node(ctx)
		if err != nil {
			return err
		}
		took = append(took, at)
		c.Stop()
	}
	c, at, err := r.node(ctx)
	if err != nil {
		return err
	}
	defer c.Stop()
	r.put("start to a Ready node", quantile(append(took, at), 0.5))
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
	if err := idle(ctx, r, c); err != nil {
		return err
	}

	seen, stop := watchPods(ctx, client, fields.Everything(), podReady)
	defer stop()
	p := &podLoad{r, client.CoreV1().Pods(namespace), seen}
	if err := p.oneByOne(ctx); err != nil {
		return err
	}
	if err := p.allAtOnce(ctx); err != nil {
		return err
	}
	return runIdlePods(ctx, r, c, client)
}

func podReady(p *corev1.Pod) bool {
	for _, c := range p.Status.Conditions {
		if c.Type == corev1.PodReady {
			return c.Status == corev1.ConditionTrue
		}
	}
	return false
}

// podLoad creates and deletes pods, and measures until it has seen the result.
type podLoad struct {
	*run
	pods corev1client.PodInterface
	seen *podsSeen
}

func (p *podLoad) create(ctx context.Context, name string) error {
	_, err := p.pods.Create(ctx, realPod(name), metav1.CreateOptions{})
	return err
}

// rowSize is how many pods are made one after the other; the first warms.
const rowSize = 21

func (p *podLoad) oneByOne(ctx context.Context) error {
	var started, ended []time.Duration
	row := time.Duration(0)
	for i := range rowSize {
		name := fmt.Sprintf("warm-%02d", i)
		began := time.Now()
		if err := p.create(ctx, name); err != nil {
			return err
		}
		at, err := p.seen.when(ctx, p.seen.at, name)
		if err != nil {
			return err
		}
		if i > 0 {
			started = append(started, at.Sub(began))
		}
	}
	for i := range rowSize {
		name := fmt.Sprintf("warm-%02d", i)
		began := time.Now()
		if err := p.pods.Delete(ctx, name, metav1.DeleteOptions{}); err != nil {
			return err
		}
		at, err := p.seen.when(ctx, p.seen.gone, name)
		if err != nil {
			return err
		}
		if i > 0 {
			ended = append(ended, at.Sub(began))
			row += at.Sub(began)
		}
	}
	p.put("warm pod, create call to Ready seen on a watch, p50", quantile(started, 0.5))
	p.put("pod that exits at once on SIGTERM, delete call to object gone", quantile(ended, 0.5))
	p.put("20 such pods in a row", float64(row.Milliseconds()))
	return nil
}

// allAtOnce comes after oneByOne, whose pods have been seen too.
func (p *podLoad) allAtOnce(ctx context.Context) error {
	n := p.count(60)
	var many []time.Duration
	for round := range bursts {
		began := time.Now()
		if _, _, err := each(ctx, clients, n, func(ctx context.Context, i int) error {
			return p.create(ctx, fmt.Sprintf("many-%d-%02d", round, i))
		}); err != nil {
			return err
		}
		total := rowSize + (round+1)*n
		if err := p.seen.await(ctx, total); err != nil {
			return err
		}
		many = append(many, time.Since(began))
		if err := removeAll(ctx, p.pods, p.seen, total); err != nil {
			return err
		}
	}
	p.put("60 pods at once, until all are Ready", quantile(many, 0.5)/1000)
	return nil
}

// removeAll deletes the pods that there are, and waits until so many have gone in all.
func removeAll(ctx context.Context, pods corev1client.PodInterface, seen *podsSeen, total int) error {
	now := int64(0)
	if err := pods.DeleteCollection(ctx, metav1.DeleteOptions{GracePeriodSeconds: &now}, metav1.ListOptions{}); err != nil {
		return err
	}
	return seen.until(ctx, podsLimit, func() (string, bool) {
		return fmt.Sprintf("%d pods gone", len(seen.gone)), len(seen.gone) >= total
	})
}

// node starts a whole cluster of one node, and says when the node was Ready.
func (r *run) node(ctx context.Context) (c *rig.Cluster, took time.Duration, err error) {
	dir := filepath.Join(r.e.dir, string(r.side))
	if programs, own := r.programs(); own {
		c, err = rig.Knarr(ctx, programs, dir, true)
	} else {
		c, err = rig.Upstream(ctx, r.e.programs, dir, "kube-controller-manager", "kube-scheduler", "node")
	}
	if err != nil {
		return nil, 0, err
	}
	if err := c.NodeReady(ctx); err != nil {
		c.Stop()
		return nil, 0, err
	}
	return c, time.Since(c.Began), nil
}

// idle measures a cluster that nobody uses.
func idle(ctx context.Context, r *run, c *rig.Cluster) error {
	if err := pause(ctx, idleTime); err != nil {
		return err
	}
	before, err := c.CPU()
	if err != nil {
		return err
	}
	const period = 30 * time.Second
	if err := pause(ctx, period); err != nil {
		return err
	}
	after, err := c.CPU()
	if err != nil {
		return err
	}
	r.put("idle CPU", 100*(after-before).Seconds()/period.Seconds())
	now, _ := c.Memory()
	r.put("idle memory, all processes", float64(now)/1e6)
	return c.Alive()
}

// realPod serves and ends at once on SIGTERM.
func realPod(name string) *corev1.Pod {
	return &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name}, Spec: corev1.PodSpec{
		Containers: []corev1.Container{{
			Name: "main", Image: rig.Image, ImagePullPolicy: corev1.PullNever,
			Command: []string{"/bin/sh", "-c", "trap 'exit 0' TERM; sleep 100000 & wait"},
		}},
	}}
}
