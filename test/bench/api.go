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
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes"

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
	c, client, err := r.startPrepared(ctx, false)
	if err != nil {
		return err
	}
	defer c.Stop()
	r.put("start to /readyz, empty store", quantile(append(took, c.Took), 0.5))
	pods, err := newRaw(c)
	if err != nil {
		return err
	}
	name := func(i int) string { return fmt.Sprintf("pod-%05d", i) }
	n := r.count(5000)
	news, err := encodedAll(n, func(i int) runtime.Object { return typed(pod(name(i))) })
	if err != nil {
		return err
	}
	if err := r.costly(ctx, c, "create pod, 32 clients", clients, n, func(ctx context.Context, i int) error {
		_, err := pods.do(ctx, http.MethodPost, "", protobufType, news[i], http.StatusCreated)
		return err
	}); err != nil {
		return err
	}
	if err := r.costly(ctx, c, "get pod", clients, 8*n, func(ctx context.Context, i int) error {
		p, err := pods.do(ctx, http.MethodGet, "/"+name(i%n), "", nil, http.StatusOK)
		if err == nil && !bytes.Contains(p, []byte(name(i%n))) {
			return fmt.Errorf("got another for %s", name(i%n))
		}
		return err
	}); err != nil {
		return err
	}
	if err := r.costly(ctx, c, "strategic patch pod", clients, n, func(ctx context.Context, i int) error {
		_, err := pods.do(ctx, http.MethodPatch, "/"+name(i), patchType, fmt.Appendf(nil, `{"metadata":{"labels":{"patched":"%d"}}}`, i), http.StatusOK)
		return err
	}); err != nil {
		return err
	}
	if err := r.costly(ctx, c, "status update (get + put)", clients, n, func(ctx context.Context, i int) error {
		b, err := pods.do(ctx, http.MethodGet, "/"+name(i), "", nil, http.StatusOK)
		if err != nil {
			return err
		}
		if b, err = withStatus(b, fmt.Sprintf("round %d", i), corev1.PodCondition{Type: "Bench", Status: corev1.ConditionTrue, LastTransitionTime: metav1.Now()}); err != nil {
			return err
		}
		_, err = pods.do(ctx, http.MethodPut, "/"+name(i)+"/status", protobufType, b, http.StatusOK)
		return err
	}); err != nil {
		return err
	}
	if err := readBack(ctx, client, n); err != nil {
		return err
	}
	if err := r.lists(ctx, c, pods, n); err != nil {
		return err
	}
	_, peak := c.Memory()
	r.put("peak memory of API server and store", float64(peak)/1e6)
	atOnce := []byte(`{"kind":"DeleteOptions","apiVersion":"v1","gracePeriodSeconds":0}`)
	if err := r.costly(ctx, c, "delete pod", clients, n, func(ctx context.Context, i int) error {
		_, err := pods.do(ctx, http.MethodDelete, "/"+name(i), jsonType, atOnce, http.StatusOK)
		return err
	}); err != nil {
		return err
	}
	left, err := client.CoreV1().Pods(namespace).List(ctx, metav1.ListOptions{})
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
func (r *run) lists(ctx context.Context, c *rig.Cluster, pods *raw, n int) error {
	for _, l := range []struct{ line, accept, encoding string }{
		{"list 5,000 pods, JSON, gzip asked for", jsonType, "gzip"},
		{"list 5,000 pods, protobuf", protobufType, "identity"},
	} {
		get := func(ctx context.Context, encoding string, to io.Writer) (int64, error) {
			req, err := http.NewRequestWithContext(ctx, http.MethodGet, pods.base, nil)
			if err != nil {
				return 0, err
			}
			req.Header.Set("Accept", l.accept)
			req.Header.Set("Accept-Encoding", encoding)
			resp, err := pods.http.Do(req)
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
		if l.accept == jsonType {
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
