package endpoints

import (
	"bytes"
	"context"
	"fmt"
	"net/http"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// benchPod is a pod such as people run.
func benchPod(name string) *corev1.Pod {
	p := testPod(name, "node-1")
	c := &p.Spec.Containers[0]
	c.Image = "registry.example.com/team/app:v1.2.3"
	c.Command = []string{"/app", "--flag=value"}
	c.Env = []corev1.EnvVar{{Name: "A", Value: "b"}, {Name: "POD_NAME", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{FieldPath: "metadata.name", APIVersion: "v1"}}}}
	c.Ports = []corev1.ContainerPort{{ContainerPort: 8080, Protocol: "TCP", Name: "http"}, {ContainerPort: 9090, Protocol: "TCP"}}
	c.Resources = corev1.ResourceRequirements{
		Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("64Mi")},
		Limits:   corev1.ResourceList{"memory": resource.MustParse("128Mi")}}
	c.ReadinessProbe = &corev1.Probe{ProbeHandler: corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromInt32(8080)}}}
	c.VolumeMounts = []corev1.VolumeMount{{Name: "config", MountPath: "/etc/app"}}
	p.Spec.Volumes = []corev1.Volume{{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{LocalObjectReference: corev1.LocalObjectReference{Name: "app"}}}}}
	p.Spec.Tolerations = []corev1.Toleration{{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute"}}
	p.Labels = map[string]string{"app": "bench", "pod-template-hash": "abc123", "tier": "web"}
	return p
}

func protobufOf(t testing.TB, p *corev1.Pod) []byte {
	t.Helper()
	message, err := p.Marshal()
	if err != nil {
		t.Fatal(err)
	}
	return envelope(corev1.SchemeGroupVersion.WithKind("Pod"), message)
}

// A sink is the cheapest ResponseWriter.
type sink struct {
	header http.Header
	code   int
	n      int
}

func (s *sink) Header() http.Header         { return s.header }
func (s *sink) WriteHeader(code int)        { s.code = code }
func (s *sink) Write(b []byte) (int, error) { s.n += len(b); return len(b), nil }

func (w *world) send(b testing.TB, method, path, contentType, accept string, body []byte, want int) int {
	req, err := http.NewRequest(method, path, bytes.NewReader(body))
	if err != nil {
		b.Fatal(err)
	}
	req.Header.Set("User-Agent", "bench/1")
	if contentType != "" {
		req.Header.Set("Content-Type", contentType)
	}
	req.Header.Set("Accept", accept)
	s := &sink{header: http.Header{}}
	w.server.ServeHTTP(s, req)
	if s.code != want {
		b.Fatalf("%s %s: %d, want %d", method, path, s.code, want)
	}
	return s.n
}

func (w *world) fill(b testing.TB, n int) {
	for i := range n {
		w.send(b, "POST", "/api/v1/namespaces/bench/pods", typeProtobuf, typeProtobuf, protobufOf(b, benchPod(fmt.Sprint("p", i))), 201)
	}
	// A consistent read waits until the cache has it all.
	w.send(b, "GET", "/api/v1/namespaces/bench/pods?limit=1", "", typeProtobuf, nil, 200)
}

func BenchmarkCreatePod(b *testing.B) {
	w := newWorld(b)
	body := protobufOf(b, benchPod("NAME0000000000"))
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		own := bytes.Replace(body, []byte("NAME0000000000"), fmt.Appendf(nil, "name%010d", n), 1)
		w.send(b, "POST", "/api/v1/namespaces/bench/pods", typeProtobuf, typeProtobuf, own, 201)
	}
}

func BenchmarkGetPod(b *testing.B) {
	for _, accept := range []string{typeJSON, typeProtobuf} {
		b.Run(strings.TrimPrefix(accept, "application/"), func(b *testing.B) {
			w := newWorld(b)
			w.fill(b, 1)
			b.ReportAllocs()
			for b.Loop() {
				w.send(b, "GET", "/api/v1/namespaces/bench/pods/p0", "", accept, nil, 200)
			}
		})
	}
}

func BenchmarkList5000Pods(b *testing.B) {
	w := newWorld(b)
	w.fill(b, 5000)
	for _, accept := range []string{typeJSON, typeProtobuf} {
		b.Run(strings.TrimPrefix(accept, "application/"), func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				b.SetBytes(int64(w.send(b, "GET", "/api/v1/pods", "", accept, nil, 200)))
			}
		})
	}
}

func BenchmarkStrategicPatchPod(b *testing.B) {
	w := newWorld(b)
	w.fill(b, 1)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		w.send(b, "PATCH", "/api/v1/namespaces/bench/pods/p0", "application/strategic-merge-patch+json", typeProtobuf,
			fmt.Appendf(nil, `{"metadata":{"annotations":{"n":"%d"}}}`, n), 200)
	}
}

func BenchmarkStatusPatchPod(b *testing.B) {
	w := newWorld(b)
	w.fill(b, 1)
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		w.send(b, "PATCH", "/api/v1/namespaces/bench/pods/p0/status", "application/strategic-merge-patch+json", typeProtobuf,
			fmt.Appendf(nil, `{"metadata":{"uid":""},"status":{"conditions":[{"type":"Ready","status":"True","reason":"r%d"}],"podIP":"10.0.0.1"}}`, n), 200)
	}
}

func BenchmarkUpdatePodStatus(b *testing.B) {
	w := newWorld(b)
	w.fill(b, 1)
	pod := benchPod("p0")
	n := 0
	b.ReportAllocs()
	for b.Loop() {
		n++
		pod.Status = corev1.PodStatus{Phase: corev1.PodRunning, PodIP: "10.0.0.1", Message: fmt.Sprint(n),
			Conditions: []corev1.PodCondition{{Type: "Ready", Status: "True", LastTransitionTime: metav1.Time{Time: time.Unix(int64(n), 0)}}}}
		w.send(b, "PUT", "/api/v1/namespaces/bench/pods/p0/status", typeProtobuf, typeProtobuf, protobufOf(b, pod), 200)
	}
}

func BenchmarkDeletePod(b *testing.B) {
	w := newWorld(b)
	w.fill(b, b.N)
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		w.send(b, "DELETE", fmt.Sprintf("/api/v1/namespaces/bench/pods/p%d?gracePeriodSeconds=0", i), "", typeProtobuf, nil, 200)
	}
}

// BenchmarkWatchFanOut counts events delivered to 200 watchers over HTTP.
func BenchmarkWatchFanOut(b *testing.B) {
	const watchers = 200
	w := newWorld(b)
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	var seen atomic.Int64
	client := &http.Client{Transport: &http.Transport{MaxConnsPerHost: watchers + 1}}
	for range watchers {
		req, err := http.NewRequestWithContext(ctx, "GET", w.url+"/api/v1/pods?watch=1", nil)
		if err != nil {
			b.Fatal(err)
		}
		resp, err := client.Do(req)
		if err != nil {
			b.Fatal(err)
		}
		go func() {
			defer resp.Body.Close()
			buf := make([]byte, 64<<10)
			for {
				n, err := resp.Body.Read(buf)
				seen.Add(int64(bytes.Count(buf[:n], newline)))
				if err != nil {
					return
				}
			}
		}()
	}
	body := protobufOf(b, benchPod("NAME0000000000"))
	b.ReportAllocs()
	b.ResetTimer()
	for i := range b.N {
		own := bytes.Replace(body, []byte("NAME0000000000"), fmt.Appendf(nil, "name%010d", i), 1)
		w.send(b, "POST", "/api/v1/namespaces/bench/pods", typeProtobuf, typeProtobuf, own, 201)
	}
	for seen.Load() < int64(b.N)*watchers {
		time.Sleep(time.Millisecond)
	}
	b.ReportMetric(float64(b.N*watchers)/b.Elapsed().Seconds(), "events/s")
	b.StopTimer()
}
