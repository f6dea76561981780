package main

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"sync"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"knarr/test/bench/rig"
)

var apiLines = []line{
	{"start to /readyz, empty store", "ms", false, 10},
	{"create pod, 32 clients", "/s", true, 5}, {"create pod, 32 clients, server CPU", "µs", false, 5},
	{"get pod", "/s", true, 4}, {"get pod, server CPU", "µs", false, 5},
	{"strategic patch pod", "/s", true, 5}, {"strategic patch pod, server CPU", "µs", false, 5},
	{"status update (get + put)", "/s", true, 5}, {"status update (get + put), server CPU", "µs", false, 5},
	{"list 5,000 pods, JSON, gzip asked for", "/s", true, 10}, {"list 5,000 pods, JSON, gzip asked for, server CPU", "µs", false, 10},
	{"list 5,000 pods, protobuf", "/s", true, 10}, {"list 5,000 pods, protobuf, server CPU", "µs", false, 10},
	{"delete pod", "/s", true, 5}, {"delete pod, server CPU", "µs", false, 5},
	{"peak memory of API server and store", "MB", false, 5},
}

// starts are how often a side is started; the last is used for all else.
const starts = 5

// runAPI measures the verbs on an API server and its store alone.
func runAPI(ctx context.Context, r *run) error {
	var took []time.Duration
	for range starts - 1 {
		c, err := r.controlPlane(ctx, false)
		if err != nil {
			return err
		}
		took = append(took, c.Took)
		c.Stop()
		if err := r.pass(ctx); err != nil {
			return err
		}
	}
	c, client, err := r.prepared(ctx, false)
	if err != nil {
		return err
	}
	defer c.Stop()
	r.put("start to /readyz, empty store", quantile(append(took, c.Took), 0.5))
	pods := client.CoreV1().Pods(namespace)
	name := func(i int) string { return fmt.Sprintf("pod-%05d", i) }
	n := r.count(5000)
	if err := r.costly(ctx, c, "create pod, 32 clients", clients, n, func(ctx context.Context, i int) error {
		_, err := pods.Create(ctx, pod(name(i)), metav1.CreateOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := r.costly(ctx, c, "get pod", clients, 8*n, func(ctx context.Context, i int) error {
		p, err := pods.Get(ctx, name(i%n), metav1.GetOptions{})
		if err == nil && p.Name != name(i%n) {
			return fmt.Errorf("got %s for %s", p.Name, name(i%n))
		}
		return err
	}); err != nil {
		return err
	}
	if err := r.costly(ctx, c, "strategic patch pod", clients, n, func(ctx context.Context, i int) error {
		p, err := pods.Patch(ctx, name(i), types.StrategicMergePatchType, fmt.Appendf(nil, `{"metadata":{"labels":{"patched":"%d"}}}`, i), metav1.PatchOptions{})
		if err == nil && p.Labels["patched"] != fmt.Sprint(i) {
			return fmt.Errorf("patch of %s answered without it", name(i))
		}
		return err
	}); err != nil {
		return err
	}
	if err := r.costly(ctx, c, "status update (get + put)", clients, n, func(ctx context.Context, i int) error {
		p, err := pods.Get(ctx, name(i), metav1.GetOptions{})
		if err != nil {
			return err
		}
		p.Status.Message = fmt.Sprintf("round %d", i)
		p.Status.Conditions = append(p.Status.Conditions, corev1.PodCondition{Type: "Bench", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()})
		_, err = pods.UpdateStatus(ctx, p, metav1.UpdateOptions{})
		return err
	}); err != nil {
		return err
	}
	if err := readBack(ctx, client, n); err != nil {
		return err
	}
	if err := r.lists(ctx, c, n); err != nil {
		return err
	}
	_, peak := c.Memory()
	r.put("peak memory of API server and store", float64(peak)/1e6)
	now := int64(0)
	if err := r.costly(ctx, c, "delete pod", clients, n, func(ctx context.Context, i int) error {
		return pods.Delete(ctx, name(i), metav1.DeleteOptions{GracePeriodSeconds: &now})
	}); err != nil {
		return err
	}
	left, err := pods.List(ctx, metav1.ListOptions{})
	if err == nil && len(left.Items) > 0 {
		return fmt.Errorf("%d pods are left after all were deleted", len(left.Items))
	}
	return err
}

// readBack checks that every pod has what the phases before wrote.
func readBack(ctx context.Context, client kubernetes.Interface, n int) error {
	list, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	if len(list.Items) != n {
		return fmt.Errorf("read back %d pods of %d", len(list.Items), n)
	}
	for i, p := range list.Items {
		if p.Labels["patched"] != fmt.Sprint(i) || p.Status.Message != fmt.Sprintf("round %d", i) {
			return fmt.Errorf("pod %s read back without what was written", p.Name)
		}
	}
	return nil
}

// reads are as large as client libraries' are once a body has grown: with 8 KiB
// client and server would be busy opening the window of the stream.
var reads = sync.Pool{New: func() any { b := make([]byte, 256<<10); return &b }}

// lists reads whole lists and counts their bytes: decoding, and even keeping,
// them would measure the client.
func (r *run) lists(ctx context.Context, c *rig.Cluster, n int) error {
	cfg, err := c.Config()
	if err != nil {
		return err
	}
	transport, err := rest.HTTPClientFor(cfg)
	if err != nil {
		return err
	}
	for _, l := range []struct{ line, accept, encoding string }{
		{"list 5,000 pods, JSON, gzip asked for", "application/json", "gzip"},
		{"list 5,000 pods, protobuf", "application/vnd.kubernetes.protobuf", "identity"},
	} {
		get := func(ctx context.Context, encoding string, to io.Writer) (int64, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, c.Server+"/api/v1/namespaces/"+namespace+"/pods", nil)
			if err != nil {
				return 0, err
			}
			req.Header.Set("Accept", l.accept)
			req.Header.Set("Accept-Encoding", encoding)
			resp, err := transport.Do(req)
			if err != nil {
				return 0, err
			}
			defer resp.Body.Close()
			buf := reads.Get().(*[]byte)
			defer reads.Put(buf)
			size, err := io.CopyBuffer(struct{ io.Writer }{to}, struct{ io.Reader }{resp.Body}, *buf)
			if err == nil && resp.StatusCode != http.StatusOK {
				err = fmt.Errorf("list: %s", resp.Status)
			}
			return size, err
		}
		if l.accept == "application/json" {
			var b bytes.Buffer
			if _, err := get(ctx, "identity", &b); err != nil {
				return err
			}
			var list struct{ Items []json.RawMessage }
			if err := json.Unmarshal(b.Bytes(), &list); err != nil || len(list.Items) != n {
				return fmt.Errorf("list has %d pods of %d: %w", len(list.Items), n, err)
			}
		}
		if err := r.costly(ctx, c, l.line, 2, r.count(40), func(ctx context.Context, i int) error {
			size, err := get(ctx, l.encoding, io.Discard)
			if err == nil && size < int64(100*n/5) {
				return fmt.Errorf("a list of %d pods in %d bytes", n, size)
			}
			return err
		}); err != nil {
			return err
		}
	}
	return nil
}
