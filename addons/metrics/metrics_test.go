package metrics

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apiserver/pkg/authentication/user"
	"k8s.io/client-go/kubernetes"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"

	"knarr/controlplane/apiserver"
	"knarr/internal/apitest"
)

// kubelets are the nodes of a test: by name, what each does with a request.
type kubelets struct {
	mu    sync.Mutex
	asked map[string]int
	nodes map[string]func(ctx context.Context) (io.Reader, error)
}

func (k *kubelets) reach(_ context.Context, node string) (*url.URL, http.RoundTripper, error) {
	return &url.URL{Scheme: "https", Host: node}, k, nil
}

func (k *kubelets) RoundTrip(r *http.Request) (*http.Response, error) {
	k.mu.Lock()
	k.asked[r.URL.Host]++
	do := k.nodes[r.URL.Host]
	k.mu.Unlock()
	if r.URL.Path != "/metrics/resource" || do == nil {
		return nil, errors.New("connection refused")
	}
	body, err := do(r.Context())
	if err != nil {
		return nil, err
	}
	return &http.Response{StatusCode: http.StatusOK, Body: io.NopCloser(body)}, nil
}

func (k *kubelets) total() (n int) {
	k.mu.Lock()
	defer k.mu.Unlock()
	for _, asked := range k.asked {
		n += asked
	}
	return n
}

// busy is a kubelet of a node that uses two cores, and these pods a quarter each.
func busy(pods ...string) func(context.Context) (io.Reader, error) {
	return func(context.Context) (io.Reader, error) {
		now := time.Now().UnixMilli()
		since := float64(now%1_000_000_000)/1000 + 1
		var b strings.Builder
		fmt.Fprintf(&b, "node_cpu_usage_seconds_total %f %d\nnode_memory_working_set_bytes 1073741824 %d\n", 2*since, now, now)
		for _, p := range pods {
			fmt.Fprintf(&b, "container_cpu_usage_seconds_total{container=\"c\",namespace=\"default\",pod=%q} %f %d\n", p, since/4, now)
			fmt.Fprintf(&b, "container_memory_working_set_bytes{container=\"c\",namespace=\"default\",pod=%q} 20971520 %d\n", p, now)
		}
		return strings.NewReader(b.String()), nil
	}
}

func hang(ctx context.Context) (io.Reader, error) {
	<-ctx.Done()
	return nil, ctx.Err()
}

type endless struct{}

func (endless) Read(p []byte) (int, error) {
	return copy(p, strings.Repeat("# more\n", len(p)/7+1)), nil
}

// A world is a metrics server with its API server and kubelets, in fake time.
type world struct {
	t      *testing.T
	api    *apitest.Server
	admin  *kubernetes.Clientset
	server *Server
	nodes  *kubelets
}

func newWorld(t *testing.T, f func(w *world)) {
	synctest.Test(t, func(t *testing.T) {
		w := &world{t: t, nodes: &kubelets{asked: map[string]int{}, nodes: map[string]func(context.Context) (io.Reader, error){}}}
		api, stop := apitest.New(t, func(c *apiserver.Config) {
			c.Aggregated = map[string]func(context.Context, string, string) (net.Conn, error){
				Service: func(ctx context.Context, network, address string) (net.Conn, error) {
					return w.server.Dial(ctx, network, address)
				},
			}
		})
		defer stop()
		w.api, w.admin = api, api.Client(t)
		var err error
		w.server, err = New(Config{
			Kube:      api.Config(&user.DefaultInfo{Name: "system:serviceaccount:kube-system:metrics-server", Groups: []string{user.AllAuthenticated}}),
			Registrar: api.Config(), Kubelet: w.nodes.reach,
		})
		if err != nil {
			t.Fatal(err)
		}
		account := &corev1.ServiceAccount{ObjectMeta: metav1.ObjectMeta{Name: "default"}}
		if _, err := w.admin.CoreV1().ServiceAccounts("default").Create(t.Context(), account, metav1.CreateOptions{}); err != nil {
			t.Fatal(err)
		}
		ctx, cancel := context.WithCancel(t.Context())
		ended := make(chan struct{})
		go func() {
			defer close(ended)
			if err := w.server.Run(ctx); err != nil {
				t.Error(err)
			}
		}()
		defer func() { cancel(); <-ended }()
		f(w)
	})
}

func (w *world) node(name string, does func(context.Context) (io.Reader, error)) {
	w.t.Helper()
	w.nodes.mu.Lock()
	w.nodes.nodes[name] = does
	w.nodes.mu.Unlock()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"size": "small"}}}
	n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: corev1.ConditionTrue}}
	if _, err := w.admin.CoreV1().Nodes().Create(w.t.Context(), n, metav1.CreateOptions{}); err != nil {
		w.t.Fatal(err)
	}
}

func (w *world) pod(name, node string, phase corev1.PodPhase) {
	w.t.Helper()
	p := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}}}
	p.Spec = corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}}
	pods := w.admin.CoreV1().Pods("default")
	made, err := pods.Create(w.t.Context(), p, metav1.CreateOptions{})
	if err == nil {
		made.Status.Phase = phase
		_, err = pods.UpdateStatus(w.t.Context(), made, metav1.UpdateOptions{})
	}
	if err != nil {
		w.t.Fatal(err)
	}
}

// get asks the API server, as kubectl does.
func (w *world) get(path string, accept ...string) (string, error) {
	u, err := url.Parse(path)
	if err != nil {
		return "", err
	}
	r := w.admin.RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1" + u.Path)
	for key, values := range u.Query() {
		r = r.Param(key, values[0])
	}
	body, err := r.SetHeader("Accept", append(accept, "application/json")[0]).Do(w.t.Context()).Raw()
	var status metav1.Status
	if err != nil && json.Unmarshal(body, &status) == nil {
		err = errors.New(status.Message)
	}
	return string(body), err
}

// TestNodesThatMisbehave: of nodes that hang, lie, answer without end or refuse,
// nothing is told, and the others are measured meanwhile.
func TestNodesThatMisbehave(t *testing.T) {
	newWorld(t, func(w *world) {
		t := w.t
		w.node("good", busy("mine", "ended"))
		w.node("liar", func(ctx context.Context) (io.Reader, error) {
			r, err := busy("mine", "theirs")(ctx)
			b, _ := io.ReadAll(r)
			return strings.NewReader(strings.ReplaceAll(string(b), " 20971520 ", " 1 ")), err
		})
		w.node("hangs", hang)
		w.node("endless", func(context.Context) (io.Reader, error) { return endless{}, nil })
		w.node("refuses", nil)
		w.pod("mine", "good", corev1.PodRunning)
		w.pod("theirs", "refuses", corev1.PodRunning)
		w.pod("ended", "good", corev1.PodSucceeded)
		time.Sleep(time.Minute)

		text, err := w.get("/nodes")
		var nodes metricsv1beta1.NodeMetricsList
		if err != nil || json.Unmarshal([]byte(text), &nodes) != nil {
			t.Fatalf("%s: %v", text, err)
		}
		var names []string
		for _, n := range nodes.Items {
			names = append(names, n.Name)
			if cpu := n.Usage.Cpu().MilliValue(); cpu < 1999 || cpu > 2001 || n.Usage.Memory().Value() != 1<<30 || n.Window.Duration < period/2 || n.Labels["size"] != "small" {
				t.Errorf("node %+v", n)
			}
		}
		if fmt.Sprint(names) != "[good liar]" {
			t.Errorf("nodes %v are told of", names)
		}
		text, err = w.get("/namespaces/default/pods")
		var pods metricsv1beta1.PodMetricsList
		if err != nil || json.Unmarshal([]byte(text), &pods) != nil || len(pods.Items) != 1 || pods.Items[0].Name != "mine" {
			t.Fatalf("%s: %v", text, err)
		}
		c := pods.Items[0].Containers[0]
		if cpu := c.Usage.Cpu().MilliValue(); c.Name != "c" || cpu < 249 || cpu > 251 || c.Usage.Memory().Value() != 20<<20 {
			t.Errorf("container %+v", c)
		}
		text, err = w.get("/namespaces/default/pods/mine?history=true")
		if err != nil || json.Unmarshal([]byte(text), &pods) != nil || len(pods.Items) < 3 {
			t.Fatalf("a minute of history: %s, %v", text, err)
		}
		for _, p := range pods.Items {
			if cpu := p.Containers[0].Usage.Cpu().MilliValue(); cpu < 249 || cpu > 251 || p.Containers[0].Usage.Memory().Value() != 20<<20 {
				t.Errorf("what another node says is in the history: %+v", p)
			}
		}
		text, err = w.get("/nodes/good?history=true")
		if err != nil || json.Unmarshal([]byte(text), &nodes) != nil || len(nodes.Items) != len(pods.Items) ||
			!nodes.Items[0].Timestamp.Before(&nodes.Items[1].Timestamp) || nodes.Items[0].Usage.Cpu().MilliValue() < 1999 {
			t.Errorf("a minute of a node's history: %s, %v", text, err)
		}
		if err := w.admin.CoreV1().Nodes().Delete(t.Context(), "good", metav1.DeleteOptions{}); err != nil {
			t.Fatal(err)
		}
		synctest.Wait()
		if text, err = w.get("/nodes/good"); err == nil || err.Error() != `nodes "good" not found` {
			t.Errorf("a node that is gone: %s, %v", text, err)
		}
	})
}

// TestAnswers is what clients ask.
func TestAnswers(t *testing.T) {
	newWorld(t, func(w *world) {
		t := w.t
		w.node("a", busy("web", "db"))
		for _, name := range []string{"web", "db", "new"} {
			w.pod(name, "a", corev1.PodRunning)
		}
		w.pod("late", "a", corev1.PodPending)
		w.node("b", hang)
		time.Sleep(time.Minute)
		const as = "application/json;as=Table;g=meta.k8s.io;v=v1"
		for _, c := range []struct{ path, accept, want, err string }{
			{"", "", `{"kind":"APIResourceList","apiVersion":"v1","groupVersion":"metrics.k8s.io/v1beta1","resources":[` +
				`{"name":"nodes","singularName":"","namespaced":false,"kind":"NodeMetrics","verbs":["get","list"]},` +
				`{"name":"pods","singularName":"","namespaced":true,"kind":"PodMetrics","verbs":["get","list"]}]}`, ""},
			{"/nodes?labelSelector=size=small", "", `"name":"a"`, ""},
			{"/nodes?labelSelector=size=large", "", `"items":[]`, ""},
			{"/nodes/a", "", `"kind":"NodeMetrics"`, ""},
			{"/nodes/b", "", "", `nodemetrics.metrics.k8s.io "b" not found`},
			{"/nodes/none", "", "", `nodes "none" not found`},
			{"/nodes?watch=true", "", "", `watch is not supported on resources of kind "nodes.metrics.k8s.io"`},
			{"/pods?labelSelector=app=web", "", `"name":"web"`, ""},
			{"/pods?labelSelector=app=none", "", `"items":[]`, ""},
			{"/pods?fieldSelector=metadata.name=db", "", `"name":"db"`, ""},
			{"/namespaces/other/pods", "", `"items":[]`, ""},
			{"/namespaces/default/pods/web", "", `"kind":"PodMetrics"`, ""},
			{"/namespaces/default/pods/new", "", "", `podmetrics.metrics.k8s.io "default/new" not found`},
			{"/namespaces/default/pods/late", "", "", `pods "late" not found`},
			{"/namespaces/default/pods/none", "", "", `pods "none" not found`},
			{"/pods?labelSelector=a=b=c", "", "", `unable to parse requirement: found '=', expected: ',' or 'end of string'`},
			{"/nodes/a?history=true", "", `"kind":"NodeMetricsList"`, ""},
			{"/nodes/b?history=true", "", `"items":[]`, ""},
			{"/nodes/none?history=true", "", "", `nodes "none" not found`},
			{"/namespaces/default/pods/late?history=true", "", "", `pods "late" not found`},
			{"/namespaces/default/pods/web?history=true", as, `"cells":["web",`, ""},
			{"/nodes?history=true", "", "", "history is that of one node or pod: name it"},
			{"/nodes/a?history=1h", "", "", `history is "1h", but can only be true or false`},
			{"/services", "", "", "the server could not find the requested resource"},
			{"/nodes/a", as, `{"name":"cpu","type":"string","format":"quantity"`, ""},
			{"/pods", as, `"cells":["db",`, ""},
		} {
			accept := c.accept
			if accept == "" {
				accept = "application/json"
			}
			text, err := w.get(c.path, accept)
			switch {
			case c.err == "" && (err != nil || !strings.Contains(text, c.want)):
				t.Errorf("%s: %v %s, want %s", c.path, err, text, c.want)
			case c.err != "" && (err == nil || err.Error() != c.err):
				t.Errorf("%s: %v %s, want the error %s", c.path, err, text, c.err)
			}
		}
		var list metricsv1beta1.PodMetricsList
		text, err := w.get("/pods", "application/vnd.kubernetes.protobuf")
		if err != nil || !strings.HasPrefix(text, "k8s\x00") {
			t.Errorf("protobuf: %q, %v", text, err)
		} else if _, _, err := protobufCodec.Decode([]byte(text), nil, &list); err != nil || len(list.Items) != 2 {
			t.Errorf("protobuf: %v, %d pods", err, len(list.Items))
		}
		for path, want := range map[string]string{
			"": `"groupVersion":"metrics.k8s.io/v1","resources":[{"name":"nodes"`, "/nodes": `{"kind":"NodeMetricsList","apiVersion":"metrics.k8s.io/v1",`,
			"/nodes/a":                    `{"kind":"NodeMetrics","apiVersion":"metrics.k8s.io/v1",`,
			"/namespaces/default/pods":    `{"kind":"PodMetrics","apiVersion":"metrics.k8s.io/v1",`,
			"/nodes/none":                 `nodes \"none\" not found`,
			"/services":                   "the server could not find the requested resource",
			"/namespaces/default/pods/db": `"kind":"PodMetrics","apiVersion":"metrics.k8s.io/v1","metadata":{"name":"db"`,
		} {
			if b, _ := w.admin.RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1"+path).SetHeader("Accept", "application/json").DoRaw(t.Context()); !strings.Contains(string(b), want) {
				t.Errorf("v1%s: %s, want %s", path, b, want)
			}
		}
		groups, err := w.admin.Discovery().ServerGroups()
		if err != nil {
			t.Fatal(err)
		}
		for _, g := range groups.Groups {
			if g.Name == group && (len(g.Versions) != 2 || g.PreferredVersion.Version != v1beta1) {
				t.Errorf("discovery: %v", g)
			}
		}
		jane := w.api.Client(t, &user.DefaultInfo{Name: "jane", Groups: []string{user.AllAuthenticated}})
		pods := jane.RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods")
		past := jane.RESTClient().Get().AbsPath("/apis/metrics.k8s.io/v1beta1/namespaces/default/pods/web").Param("history", "true")
		if err := past.Do(t.Context()).Error(); err == nil || !strings.HasPrefix(err.Error(), `pods.metrics.k8s.io "web" is forbidden: User "jane" cannot get resource`) {
			t.Errorf("the history for who may not: %v", err)
		}
		if err := pods.Do(t.Context()).Error(); err == nil || !strings.HasPrefix(err.Error(), `pods.metrics.k8s.io is forbidden: User "jane" cannot list resource`) {
			t.Errorf("who may not: %v", err)
		}
	})
}

// TestTakenOver: a user's own metrics server takes the place of this one, which
// measures no more; once it is gone this one is back.
func TestTakenOver(t *testing.T) {
	newWorld(t, func(w *world) {
		t := w.t
		w.node("a", busy())
		time.Sleep(time.Minute)
		if w.nodes.total() < 4 {
			t.Errorf("asked %d times in a minute", w.nodes.total())
		}
		rest := w.server.register.rest
		take := []byte(`{"spec":{"insecureSkipTLSVerify":true,"service":{"namespace":"kube-system","name":"metrics-server"}}}`)
		if err := rest.Patch("application/merge-patch+json").Resource(apiServices).Name(apiServiceName).Body(take).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(period)
		before := w.nodes.total()
		later := func() bool {
			return rest.Get().Resource(apiServices).Name(laterName).Do(t.Context()).Error() == nil
		}
		if later() {
			t.Error("v1 is served from here while another serves v1beta1")
		}
		time.Sleep(time.Hour)
		if after := w.nodes.total(); after != before || w.server.store.nodeHistory("a", time.Now()) != nil {
			t.Errorf("asked %d times while another serves", after-before)
		}
		if err := Withdraw(t.Context(), w.api.Config()); err != nil {
			t.Fatal(err)
		}
		if _, err := w.get("/nodes"); err == nil || strings.Contains(err.Error(), "not find") {
			t.Errorf("the user's APIService is gone: %v", err)
		}
		if err := rest.Delete().Resource(apiServices).Name(apiServiceName).Do(t.Context()).Error(); err != nil {
			t.Fatal(err)
		}
		time.Sleep(time.Minute)
		if text, err := w.get("/nodes/a"); err != nil {
			t.Errorf("after the other is gone: %s, %v", text, err)
		}
		if !later() {
			t.Error("v1 is not back")
		}
	})
}
