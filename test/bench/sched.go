package main

import (
	"context"
	"fmt"
	"net/http"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/fields"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"
)

var schedLines = []line{
	{"schedule 5,000 pods on 1,000 nodes, created at the same time", "/s", true, 10},
	{"schedule, control plane CPU per pod", "µs", false, 10},
	{"memory of the control plane after that", "MB", false, 6},
}

// settle is how long after a load memory is read: at its end, it would tell how
// long ago the last garbage collection was.
const settle = 5 * time.Second

// runSched creates pods while the scheduler binds them to nodes that are only
// objects.
func runSched(ctx context.Context, r *run) error {
	c, client, err := r.startPrepared(ctx, true)
	if err != nil {
		return err
	}
	defer c.Stop()
	nodes := r.count(1000)
	if _, _, err := each(ctx, clients, nodes, func(ctx context.Context, i int) error { return makeNode(ctx, client, i) }); err != nil {
		return err
	}
	n := r.count(5000)
	pods, err := newRaw(c)
	if err != nil {
		return err
	}
	news, err := encodedAll(n, func(i int) runtime.Object { return typed(pod(fmt.Sprintf("pod-%05d", i))) })
	if err != nil {
		return err
	}
	bound, stop := watchPods(ctx, client, fields.OneTermNotEqualSelector("spec.nodeName", ""), func(*corev1.Pod) bool { return true })
	defer stop()
	before, err := c.CPU()
	if err != nil {
		return err
	}
	began := time.Now()
	if _, _, err := each(ctx, clients, n, func(ctx context.Context, i int) error {
		_, err := pods.do(ctx, http.MethodPost, "", protobufType, news[i], http.StatusCreated)
		return err
	}); err != nil {
		return err
	}
	if err := bound.await(ctx, n); err != nil {
		return err
	}
	took := time.Since(began)
	after, err := c.CPU()
	if err != nil {
		return err
	}
	r.put("schedule 5,000 pods on 1,000 nodes, created at the same time", float64(n)/took.Seconds())
	r.put("schedule, control plane CPU per pod", float64((after-before).Microseconds())/float64(n))
	select {
	case <-time.After(settle):
	case <-ctx.Done():
		return ctx.Err()
	}
	now, _ := c.Memory()
	r.put("memory of the control plane after that", float64(now)/1e6)
	return legal(ctx, client, nodes, n)
}

// legal checks that every pod is on a node that has room for it.
func legal(ctx context.Context, client kubernetes.Interface, nodes, n int) error {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	on := map[string]int{}
	for _, p := range list.Items {
		on[p.Spec.NodeName]++
	}
	if len(list.Items) != n || on[""] > 0 {
		return fmt.Errorf("%d pods, %d of them on no node", len(list.Items), on[""])
	}
	for name, pods := range on {
		if pods > 110 {
			return fmt.Errorf("node %s has %d pods and room for 110", name, pods)
		}
	}
	if len(on) > nodes {
		return fmt.Errorf("pods are on %d nodes of %d", len(on), nodes)
	}
	return nil
}

func makeNode(ctx context.Context, client kubernetes.Interface, i int) error {
	room := corev1.ResourceList{"cpu": resource.MustParse("16"), "memory": resource.MustParse("64Gi"), "pods": resource.MustParse("110")}
	name := fmt.Sprintf("node-%04d", i)
	now := metav1.Now()
	node, err := client.CoreV1().Nodes().Create(ctx, &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		corev1.LabelHostname: name, corev1.LabelTopologyZone: fmt.Sprintf("zone-%d", i%3)}}}, metav1.CreateOptions{})
	if err != nil {
		return err
	}
	node.Status = corev1.NodeStatus{Capacity: room, Allocatable: room, Conditions: []corev1.NodeCondition{
		{Type: corev1.NodeReady, Status: corev1.ConditionTrue, Reason: "KubeletReady", LastHeartbeatTime: now, LastTransitionTime: now}}}
	for { // the controllers write it too
		if _, err = client.CoreV1().Nodes().UpdateStatus(ctx, node, metav1.UpdateOptions{}); err == nil || ctx.Err() != nil {
			return err
		}
		status := node.Status
		if node, err = client.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{}); err != nil {
			return err
		}
		node.Status = status
	}
}
