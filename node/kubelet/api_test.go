package kubelet

import (
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"net/http/httptest"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/strategicpatch"
	"k8s.io/client-go/rest"

	"knarr/node/kubelet/podtest"
)

// miniAPI is as much of an API server as a kubelet needs: it keeps JSON by
// path, watches, and merges the status of pods and nodes.
type miniAPI struct {
	mu      sync.Mutex
	version int
	gets    map[string]int // by path
	tokens  int            // that were given
	behind  time.Duration  // its clock is, of this machine's
	objects map[string]map[string]any
	watches map[chan watchEvent]string // to a path prefix
	srv     *httptest.Server
}

type watchEvent struct {
	path string
	body []byte
}

func newMiniAPI(t testing.TB) *miniAPI {
	a := &miniAPI{gets: map[string]int{}, objects: map[string]map[string]any{}, watches: map[chan watchEvent]string{}}
	a.srv = httptest.NewServer(a)
	t.Cleanup(func() { a.srv.CloseClientConnections(); a.srv.Close() })
	return a
}

func (a *miniAPI) config() *rest.Config {
	return &rest.Config{Host: a.srv.URL, ContentConfig: rest.ContentConfig{ContentType: "application/json"}}
}

func (a *miniAPI) put(path string, o map[string]any, kind string) {
	a.version++
	meta := o["metadata"].(map[string]any)
	meta["resourceVersion"] = strconv.Itoa(a.version)
	a.objects[path] = o
	a.notify(path, kind, o)
}

func (a *miniAPI) notify(path, kind string, o map[string]any) {
	b, _ := json.Marshal(map[string]any{"type": kind, "object": o})
	b = append(b, '\n') // once: several watchers read it
	for ch, prefix := range a.watches {
		if strings.HasPrefix(path, prefix) || strings.HasSuffix(prefix, "/pods/") && strings.Contains(path, "/pods/") {
			ch <- watchEvent{path, b}
		}
	}
}

// addPod creates a pod bound to the node.
func (a *miniAPI) addPod(p *corev1.Pod) {
	p.APIVersion, p.Kind = "v1", "Pod"
	p.Generation = 1
	p.Status.Phase = corev1.PodPending
	b, _ := json.Marshal(p)
	var o map[string]any
	_ = json.Unmarshal(b, &o)
	a.mu.Lock()
	defer a.mu.Unlock()
	a.put("/api/v1/namespaces/"+p.Namespace+"/pods/"+p.Name, o, "ADDED")
}

// pod is the pod as stored, nil if it is gone.
func (a *miniAPI) pod(name string) *corev1.Pod {
	a.mu.Lock()
	defer a.mu.Unlock()
	o := a.objects["/api/v1/namespaces/ns/pods/"+name]
	if o == nil {
		return nil
	}
	b, _ := json.Marshal(o)
	p := &corev1.Pod{}
	_ = json.Unmarshal(b, p)
	return p
}

// deletePod asks for a pod to be deleted gracefully.
func (a *miniAPI) deletePod(name string) { a.deletePodWithin(name, 1) }

// deletePodWithin marks a pod as deleted that has so many seconds to end.
func (a *miniAPI) deletePodWithin(name string, grace int64) {
	a.mu.Lock()
	defer a.mu.Unlock()
	path := "/api/v1/namespaces/ns/pods/" + name
	o := a.objects[path]
	meta := o["metadata"].(map[string]any)
	meta["deletionTimestamp"] = "2030-01-01T00:00:00Z"
	meta["deletionGracePeriodSeconds"] = grace
	a.put(path, o, "MODIFIED")
}

func (a *miniAPI) drop(path string) {
	if o := a.objects[path]; o != nil {
		delete(a.objects, path)
		a.version++
		a.notify(path, "DELETED", o)
	}
}

// dropPod removes a pod at once, as a forced deletion does.
func (a *miniAPI) dropPod(name string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.drop("/api/v1/namespaces/ns/pods/" + name)
}

func (a *miniAPI) events() (out []string) {
	a.mu.Lock()
	defer a.mu.Unlock()
	for p, o := range a.objects {
		if strings.Contains(p, "/events/") {
			out = append(out, fmt.Sprint(o["reason"], ": ", o["message"]))
		}
	}
	return out
}

func (a *miniAPI) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	body, _ := io.ReadAll(r.Body)
	path := strings.TrimSuffix(r.URL.Path, "/status")
	w.Header().Set("Content-Type", "application/json")
	if r.URL.Query().Get("watch") != "" {
		a.watch(w, r, path+"/"+selected(r))
		return
	}
	a.mu.Lock()
	defer a.mu.Unlock()
	fail := func(code int, reason metav1.StatusReason) {
		w.WriteHeader(code)
		_ = json.NewEncoder(w).Encode(metav1.Status{TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: "Failure", Reason: reason, Code: int32(code)})
	}
	have := a.objects[path]
	switch r.Method {
	case http.MethodGet:
		a.gets[path]++
		if have != nil {
			_ = json.NewEncoder(w).Encode(have)
			return
		}
		last := path[strings.LastIndex(path, "/")+1:]
		switch last {
		case "configmaps", "secrets":
			items := []any{}
			for p, o := range a.objects {
				if strings.HasPrefix(p, path+"/"+selected(r)) {
					items = append(items, o)
				}
			}
			_ = json.NewEncoder(w).Encode(map[string]any{"kind": map[string]string{"configmaps": "ConfigMapList", "secrets": "SecretList"}[last], "apiVersion": "v1", "metadata": map[string]any{"resourceVersion": strconv.Itoa(a.version)}, "items": items})
			return
		}
		fail(404, metav1.StatusReasonNotFound)
	case http.MethodPost:
		var o map[string]any
		_ = json.Unmarshal(body, &o)
		meta := o["metadata"].(map[string]any)
		if account, ok := strings.CutSuffix(path, "/token"); ok {
			a.tokens++
			o["status"] = map[string]any{"token": "token-of-" + account[strings.LastIndex(account, "/")+1:], "expirationTimestamp": time.Now().Add(time.Hour - a.behind).UTC().Format(time.RFC3339)}
			_ = json.NewEncoder(w).Encode(o)
			return
		}
		path += "/" + fmt.Sprint(meta["name"])
		if a.objects[path] != nil {
			fail(409, metav1.StatusReasonAlreadyExists)
			return
		}
		meta["uid"] = "u" + strconv.Itoa(a.version)
		a.put(path, o, "ADDED")
		_ = json.NewEncoder(w).Encode(o)
	case http.MethodPut:
		var o map[string]any
		_ = json.Unmarshal(body, &o)
		a.put(path, o, "MODIFIED")
		_ = json.NewEncoder(w).Encode(o)
	case http.MethodPatch:
		if have == nil {
			fail(404, metav1.StatusReasonNotFound)
			return
		}
		old, _ := json.Marshal(have)
		var as any = corev1.Pod{}
		if strings.Contains(path, "/nodes/") {
			as = corev1.Node{}
		}
		if r.Header.Get("Content-Type") != string(types.StrategicMergePatchType) {
			fail(415, metav1.StatusReasonUnsupportedMediaType)
			return
		}
		b, err := strategicpatch.StrategicMergePatch(old, body, as)
		if err != nil {
			fail(400, metav1.StatusReasonBadRequest)
			return
		}
		var o map[string]any
		_ = json.Unmarshal(b, &o)
		a.put(path, o, "MODIFIED")
		_ = json.NewEncoder(w).Encode(o)
	case http.MethodDelete:
		if have == nil {
			fail(404, metav1.StatusReasonNotFound)
			return
		}
		a.drop(path)
		_ = json.NewEncoder(w).Encode(metav1.Status{Status: "Success"})
	}
}

// selected is the name of the one configMap or secret that is asked for, "" for
// all objects.
func selected(r *http.Request) string {
	if !strings.HasSuffix(r.URL.Path, "/configmaps") && !strings.HasSuffix(r.URL.Path, "/secrets") {
		return ""
	}
	return strings.TrimPrefix(r.URL.Query().Get("fieldSelector"), "metadata.name=")
}

func (a *miniAPI) watch(w http.ResponseWriter, r *http.Request, prefix string) {
	ch := make(chan watchEvent, 1024)
	from, _ := strconv.Atoi(r.URL.Query().Get("resourceVersion"))
	a.mu.Lock()
	a.watches[ch] = prefix
	// What came between the list and the watch.
	for p, o := range a.objects {
		v, _ := strconv.Atoi(fmt.Sprint(o["metadata"].(map[string]any)["resourceVersion"]))
		if v > from && (strings.HasPrefix(p, prefix) || strings.HasSuffix(prefix, "/pods/") && strings.Contains(p, "/pods/")) {
			b, _ := json.Marshal(map[string]any{"type": "ADDED", "object": o})
			ch <- watchEvent{p, append(b, '\n')}
		}
	}
	if r.URL.Query().Get("sendInitialEvents") == "true" {
		kind := map[string]string{"pods": "Pod", "services": "Service", "nodes": "Node"}[r.URL.Path[strings.LastIndex(r.URL.Path, "/")+1:]]
		b, _ := json.Marshal(map[string]any{"type": "BOOKMARK", "object": map[string]any{"kind": kind, "apiVersion": "v1", "metadata": map[string]any{
			"resourceVersion": strconv.Itoa(a.version), "annotations": map[string]any{metav1.InitialEventsAnnotationKey: "true"}}}})
		ch <- watchEvent{"", append(b, '\n')}
	}
	a.mu.Unlock()
	defer func() {
		a.mu.Lock()
		delete(a.watches, ch)
		a.mu.Unlock()
	}()
	w.WriteHeader(200)
	w.(http.Flusher).Flush()
	for {
		select {
		case <-r.Context().Done():
			return
		case ev := <-ch:
			_, _ = w.Write(ev.body)
			w.(http.Flusher).Flush()
		}
	}
}

// TestTokenAge: a token is renewed in time by the life that it was granted, whatever the clocks
// of this node and the API server are, and not again and again.
func TestTokenAge(t *testing.T) {
	asked := time.Now()
	for i, c := range []struct {
		expires time.Duration // as this node's clock sees it
		granted *int64
		want    time.Duration
	}{
		{time.Hour, nil, 48 * time.Minute}, {time.Hour, new(int64(3600)), 48 * time.Minute}, {-time.Hour, new(int64(3600)), 48 * time.Minute},
		{24 * 365 * time.Hour, new(int64(3600)), 48 * time.Minute}, {-time.Hour, nil, time.Minute}, {-time.Hour, new(int64(0)), time.Minute},
		{10 * time.Second, new(int64(10)), time.Minute}, {time.Hour, new(int64(1 << 62)), 24 * time.Hour}, {30 * 24 * time.Hour, nil, 24 * time.Hour},
	} {
		got := &authenticationv1.TokenRequest{Spec: authenticationv1.TokenRequestSpec{ExpirationSeconds: c.granted},
			Status: authenticationv1.TokenRequestStatus{ExpirationTimestamp: metav1.NewTime(asked.Add(c.expires))}}
		if age := tokenAge(got, asked); age != c.want {
			t.Errorf("case %d: renewed after %v, want %v", i, age, c.want)
		}
	}
}

// TestTokensAndTheClock: a node whose clock is two hours ahead of the API server's asks for a
// token once all the same.
func TestTokensAndTheClock(t *testing.T) {
	n := newNode(t)
	n.api.behind = 2 * time.Hour
	n.start()
	p := podtest.Pod("p", "c")
	p.Spec.ServiceAccountName = "default"
	p.Spec.Volumes = []corev1.Volume{{Name: "v", VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{Sources: []corev1.VolumeProjection{
		{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{Path: "token", ExpirationSeconds: new(int64(3600))}}}}}}}
	p.Spec.Containers[0].VolumeMounts = []corev1.VolumeMount{{Name: "v", MountPath: "/token"}}
	n.api.addPod(p)
	n.until("ready", n.ready("p"))
	n.api.addPod(podtest.Pod("later", "c"))
	n.until("later", n.ready("later"))
	n.api.deletePod("p") // and what is mounted for it
	n.until("gone", func() bool { return n.api.pod("p") == nil })
	n.api.mu.Lock()
	defer n.api.mu.Unlock()
	if n.api.tokens != 1 {
		t.Errorf("asked for %d tokens", n.api.tokens)
	}
}
