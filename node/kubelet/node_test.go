package kubelet

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"runtime"
	"slices"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/equality"
	"k8s.io/apimachinery/pkg/api/resource"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/component-helpers/nodedeclaredfeatures"

	"knarr/internal/features"
	"knarr/node/kubelet/configuration"
)

// nodeReady is the Node's Ready condition in the API.
func (n *node) nodeReady() corev1.NodeCondition { return n.condition(corev1.NodeReady) }

func (n *node) condition(of corev1.NodeConditionType) corev1.NodeCondition {
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	b, _ := json.Marshal(n.api.objects["/api/v1/nodes/n1"])
	var o corev1.Node
	_ = json.Unmarshal(b, &o)
	for _, c := range o.Status.Conditions {
		if c.Type == of {
			return c
		}
	}
	return corev1.NodeCondition{}
}

// TestNetworkFailureCondition: a node whose network component cannot start is
// not ready and says why, and is ready again once it can.
func TestNetworkFailureCondition(t *testing.T) {
	n := newNode(t)
	var wrong atomic.Pointer[error]
	err := errors.New("kube-proxy: protocol not supported")
	wrong.Store(&err)
	n.config = func(c *Config) {
		c.NetworkErr = func() error {
			if p := wrong.Load(); p != nil {
				return *p
			}
			return nil
		}
	}
	defer n.start()()
	n.until("not ready", func() bool { return n.nodeReady().Status == corev1.ConditionFalse })
	if c := n.nodeReady(); c.Reason != "KubeletNotReady" || c.Message != "container runtime network not ready: kube-proxy: protocol not supported" {
		t.Errorf("%+v", c)
	}
	wrong.Store(nil)
	n.until("ready", func() bool { return n.nodeReady().Status == corev1.ConditionTrue })
}

// TestStaleNetwork: a network whose rules are not brought up to date takes no new pods, and
// those that are there stay ready; a condition that is a cloud's is left alone.
func TestStaleNetwork(t *testing.T) {
	n := newNode(t)
	var wrong atomic.Pointer[error]
	n.config = func(c *Config) {
		c.NetworkStale = func() error {
			if p := wrong.Load(); p != nil {
				return *p
			}
			return nil
		}
	}
	defer n.start()()
	n.until("ready", func() bool { return n.nodeReady().Status == corev1.ConditionTrue })
	clouds := []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "RouteCreated"}}
	if c, ok := staleNetwork(clouds, ""); ok {
		t.Errorf("a cloud's condition becomes %v", c)
	}
	err := errors.New("kube-proxy: no space left on device")
	wrong.Store(&err)
	is := func(status corev1.ConditionStatus, message string) func() bool {
		return func() bool {
			c := n.condition(corev1.NodeNetworkUnavailable)
			return c.Status == status && c.Message == message
		}
	}
	n.until("it says what is not up to date", is(corev1.ConditionTrue, err.Error()))
	if c := n.nodeReady(); c.Status != corev1.ConditionTrue {
		t.Errorf("not ready: %s", c.Message)
	}
	wrong.Store(nil)
	n.until("it says that it is", is(corev1.ConditionFalse, "the node's network is up to date"))
}

// TestUnregistered: with registerNode off the Node is somebody else's to make, and then has
// its status kept.
func TestUnregistered(t *testing.T) {
	n := newNode(t)
	n.config = func(c *Config) { c.Settings.RegisterNode = new(false) }
	n.start()
	n.until("a look for the Node", func() bool {
		n.api.mu.Lock()
		defer n.api.mu.Unlock()
		return n.api.gets["/api/v1/nodes/n1"] > 1
	})
	if c := n.nodeReady(); c.Type != "" {
		t.Fatalf("it was made: %+v", c)
	}
	n.api.mu.Lock()
	n.api.put("/api/v1/nodes/n1", map[string]any{"kind": "Node", "apiVersion": "v1", "metadata": map[string]any{"name": "n1", "uid": "theirs"}}, "ADDED")
	n.api.mu.Unlock()
	n.until("ready", func() bool { return n.nodeReady().Status == corev1.ConditionTrue })
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	if labels := n.api.objects["/api/v1/nodes/n1"]["metadata"].(map[string]any)["labels"]; labels != nil && labels.(map[string]any)[corev1.LabelHostname] != nil {
		t.Errorf("it was labelled: %v", labels)
	}
}

func TestRuntimeVersion(t *testing.T) {
	for v, want := range map[string]string{"2.3.7+unknown": "2.3.7", "v2.3.7": "v2.3.7", "1.33+dirty": "1.33+dirty"} {
		if got := runtimeVersion(v); got != want {
			t.Errorf("%s is shown as %s", v, got)
		}
	}
}

// byDefault are upstream's gates, none of which is set.
type byDefault struct{}

func (byDefault) Enabled(name string) bool { return features.Set{}.Enabled(name) }

// TestDeclaredFeatures: they are those that upstream's kubelet of this version declares when
// no gate is set, sorted as the API server takes them.
func TestDeclaredFeatures(t *testing.T) {
	want := nodedeclaredfeatures.DefaultFramework.DiscoverNodeFeatures(&nodedeclaredfeatures.NodeConfiguration{FeatureGates: byDefault{}, Version: servedFeatures})
	if !slices.Equal(declaredFeatures, want) || !slices.IsSorted(declaredFeatures) {
		t.Errorf("declared are %v, want %v", declaredFeatures, want)
	}
}

// TestAdvertisedResources: what is put into the capacity of a Node, as administrators do
// with extended resources, becomes allocatable, and is that no more once it is taken out.
func TestAdvertisedResources(t *testing.T) {
	list := func(of ...string) corev1.ResourceList {
		out := corev1.ResourceList{}
		for i := 0; i < len(of); i += 2 {
			out[corev1.ResourceName(of[i])] = resource.MustParse(of[i+1])
		}
		return out
	}
	s := corev1.NodeStatus{
		Capacity:    list("cpu", "1", "example.com/dongle", "4", "example.com/fewer", "1"),
		Allocatable: list("cpu", "1", "example.com/fewer", "2", "example.com/gone", "3"),
	}
	for range 2 { // as often as the status is written
		setResources(&s, list("cpu", "2", "memory", "8Gi"), list("cpu", "1500m", "memory", "7Gi"))
	}
	if want := list("cpu", "2", "memory", "8Gi", "example.com/dongle", "4", "example.com/fewer", "1"); !equality.Semantic.DeepEqual(s.Capacity, want) {
		t.Errorf("capacity: %v", s.Capacity)
	}
	if want := list("cpu", "1500m", "memory", "7Gi", "example.com/dongle", "4", "example.com/fewer", "1"); !equality.Semantic.DeepEqual(s.Allocatable, want) {
		t.Errorf("allocatable: %v", s.Allocatable)
	}
}

// TestHugepagesGone: of pages the Node keeps the sizes that the machine has.
func TestHugepagesGone(t *testing.T) {
	list := func() corev1.ResourceList {
		q := resource.MustParse("9Mi")
		return corev1.ResourceList{"hugepages-3Mi": q, "hugepages-2Mi": q, "memory": q, "example.com/hugepages-3Mi": q}
	}
	s := corev1.NodeStatus{Capacity: list(), Allocatable: list()}
	dropHugepages(&s, map[string]int64{"2Mi": 0})
	for _, l := range []corev1.ResourceList{s.Capacity, s.Allocatable} {
		if _, there := l["hugepages-3Mi"]; there || len(l) != 3 {
			t.Errorf("%v", l)
		}
	}
}

// startAttentive starts a kubelet that looks at its Node soon after somebody wrote it, and
// reports by itself only long after a test, and waits until it is ready.
func (n *node) startAttentive() (stop func()) {
	n.config = func(c *Config) {
		c.Settings.NodeStatusUpdateFrequency.Duration = 20 * time.Millisecond
		c.Settings.NodeStatusReportFrequency.Duration = time.Hour
	}
	stop = n.start()
	n.until("ready", func() bool { return n.nodeReady().Status == corev1.ConditionTrue })
	return stop
}

// TestAdvertisedLater: a running kubelet follows what others put into the Node's capacity,
// and takes out of it, long before it writes the status anyway.
func TestAdvertisedLater(t *testing.T) {
	n := newNode(t)
	defer n.startAttentive()()
	const path = "/api/v1/nodes/n1"
	resources := func(kind string) map[string]any {
		list, _ := n.api.objects[path]["status"].(map[string]any)[kind].(map[string]any)
		return list
	}
	for _, want := range []any{"4", "7", nil} {
		n.api.mu.Lock()
		if want == nil {
			delete(resources("capacity"), "example.com/dongle")
		} else {
			resources("capacity")["example.com/dongle"] = want
		}
		n.api.put(path, n.api.objects[path], "MODIFIED")
		n.api.mu.Unlock()
		n.until(fmt.Sprintf("%v of them are allocatable", want), func() bool {
			n.api.mu.Lock()
			defer n.api.mu.Unlock()
			return resources("allocatable")["example.com/dongle"] == want
		})
	}
}

// TestLabelsAreRestored: what somebody else says of the node's system and processor does not
// stay, also while the kubelet runs.
func TestLabelsAreRestored(t *testing.T) {
	n := newNode(t)
	defer n.startAttentive()()
	const path = "/api/v1/nodes/n1"
	labels := func() map[string]any {
		return n.api.objects[path]["metadata"].(map[string]any)["labels"].(map[string]any)
	}
	n.api.mu.Lock()
	labels()[corev1.LabelOSStable] = "plan9"
	delete(labels(), corev1.LabelArchStable)
	labels()["kept"] = "yes"
	n.api.put(path, n.api.objects[path], "MODIFIED")
	n.api.mu.Unlock()
	n.until("they are right again", func() bool {
		n.api.mu.Lock()
		defer n.api.mu.Unlock()
		l := labels()
		return l[corev1.LabelOSStable] == runtime.GOOS && l[corev1.LabelArchStable] == runtime.GOARCH && l["kept"] == "yes"
	})
}

// TestSilentServer: a server that takes heartbeats and answers none is left for another.
func TestSilentServer(t *testing.T) {
	var left atomic.Bool
	renewed := make(chan struct{}, 1)
	srv := httptest.NewServer(http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		_, _ = io.Copy(io.Discard, r.Body) // whoever asked may be gone then
		if !left.Load() {
			<-r.Context().Done()
			return
		}
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"Lease","apiVersion":"coordination.k8s.io/v1","metadata":{"name":"n1"}}`)
		if r.Method == http.MethodPut {
			select {
			case renewed <- struct{}{}:
			default:
			}
		}
	}))
	defer srv.Close()
	client, err := kubernetes.NewForConfig(&rest.Config{Host: srv.URL})
	if err != nil {
		t.Fatal(err)
	}
	k := &Kubelet{client: client, registered: newGate(), heartbeat: 50 * time.Millisecond, cfg: Config{
		NodeName: "n1", Settings: &configuration.Settings{}, LeaveServer: func() { left.Store(true) },
	}}
	k.cfg.Settings.NodeLeaseDurationSeconds = 40
	k.registered.open()
	ctx, stop := context.WithCancel(t.Context())
	ended := make(chan struct{})
	go func() { defer close(ended); k.keepLease(ctx) }()
	<-renewed
	stop()
	<-ended
}

// TestNodeMadeBefore: a Node that somebody else made is one whose volumes controllers attach.
func TestNodeMadeBefore(t *testing.T) {
	n := newNode(t)
	const path = "/api/v1/nodes/n1"
	n.api.mu.Lock()
	n.api.put(path, map[string]any{"apiVersion": "v1", "kind": "Node", "metadata": map[string]any{"name": "n1", "uid": "u", "annotations": map[string]any{"kept": "yes"}}}, "ADDED")
	n.api.mu.Unlock()
	n.start()
	n.until("it is annotated", func() bool {
		n.api.mu.Lock()
		defer n.api.mu.Unlock()
		a, _ := n.api.objects[path]["metadata"].(map[string]any)["annotations"].(map[string]any)
		return a[controllerAttaches] == "true" && a["kept"] == "yes"
	})
}
