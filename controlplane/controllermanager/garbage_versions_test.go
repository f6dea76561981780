package controllermanager

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/http"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/dynamic"
	"k8s.io/client-go/rest"

	"knarr/internal/apitest"
)

const gadgetGroup = "gadgets.example.com"

// gadgets is a custom kind in two versions. The collector follows the preferred
// one, which is v1 whenever that is served.
type gadgets struct {
	*cluster
	dynamic.Interface
	hidden *atomic.Bool  // as if its APIService were gone
	slow   *atomic.Int64 // how long its API takes to answer the collector, a time.Duration
	broken *atomic.Bool  // its API fails
}

func (g gadgets) define() {
	g.Helper()
	version := func(name string, served, storage bool) map[string]any {
		return map[string]any{"name": name, "served": served, "storage": storage,
			"schema": map[string]any{"openAPIV3Schema": map[string]any{"type": "object"}}}
	}
	g.no(g.post("/apis/apiextensions.k8s.io/v1/customresourcedefinitions", map[string]any{
		"apiVersion": "apiextensions.k8s.io/v1", "kind": "CustomResourceDefinition",
		"metadata": map[string]any{"name": "gadgets." + gadgetGroup},
		"spec": map[string]any{"group": gadgetGroup, "scope": "Namespaced",
			"names":    map[string]any{"plural": "gadgets", "kind": "Gadget"},
			"versions": []any{version("v1alpha1", true, true), version("v1", false, false)}},
	}))
}

// hide makes the group vanish or come back; a change of an APIService tells so.
func (g gadgets) hide(hidden bool) {
	g.Helper()
	g.hidden.Store(hidden)
	patch := fmt.Sprintf(`[{"op":"add","path":"/metadata/annotations","value":{"at":%q}}]`, time.Now())
	g.no(g.client.CoreV1().RESTClient().Patch(types.JSONPatchType).Body([]byte(patch)).
		AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets." + gadgetGroup).Do(g.ctx).Error())
}

// serve makes the kind's newer version come or go.
func (g gadgets) serve(v1 bool) {
	g.Helper()
	patch := fmt.Sprintf(`[{"op":"replace","path":"/spec/versions/1/served","value":%t}]`, v1)
	g.no(g.client.CoreV1().RESTClient().Patch(types.JSONPatchType).Body([]byte(patch)).
		AbsPath("/apis/apiextensions.k8s.io/v1/customresourcedefinitions/gadgets." + gadgetGroup).Do(g.ctx).Error())
}

func (g gadgets) resource() dynamic.ResourceInterface {
	return g.Resource(schema.GroupVersionResource{Group: gadgetGroup, Version: "v1alpha1", Resource: "gadgets"}).Namespace("default")
}

func (g gadgets) create(name string, owners ...metav1.OwnerReference) metav1.OwnerReference {
	g.Helper()
	u := &unstructured.Unstructured{}
	u.SetAPIVersion(gadgetGroup + "/v1alpha1")
	u.SetKind("Gadget")
	u.SetName(name)
	u.SetOwnerReferences(owners)
	made, err := g.resource().Create(g.ctx, u, metav1.CreateOptions{})
	g.no(err)
	return metav1.OwnerReference{APIVersion: made.GetAPIVersion(), Kind: "Gadget", Name: name, UID: made.GetUID()}
}

func (g gadgets) configMap(name string, owners ...metav1.OwnerReference) metav1.OwnerReference {
	g.Helper()
	made, err := g.client.CoreV1().ConfigMaps("default").Create(g.ctx, &corev1.ConfigMap{
		ObjectMeta: metav1.ObjectMeta{Name: name, OwnerReferences: owners}}, metav1.CreateOptions{})
	g.no(err)
	return metav1.OwnerReference{APIVersion: "v1", Kind: "ConfigMap", Name: name, UID: made.UID}
}

// names are the objects there are, those of every cluster left out.
func (g gadgets) names() []string {
	g.Helper()
	all := map[string]bool{}
	maps1, err := g.client.CoreV1().ConfigMaps("default").List(g.ctx, metav1.ListOptions{})
	g.no(err)
	for _, m := range maps1.Items {
		all[m.Name] = true
	}
	list, err := g.resource().List(g.ctx, metav1.ListOptions{})
	g.no(err)
	for _, m := range list.Items {
		all[m.GetName()] = true
	}
	return slices.Sorted(maps.Keys(all))
}

// hiding answers as a server does that knows nothing of the group.
func (g gadgets) hiding(next http.RoundTripper) http.RoundTripper {
	return roundTripper(func(req *http.Request) (*http.Response, error) {
		if !g.hidden.Load() {
			if g.broken.Load() && strings.HasSuffix(req.URL.Path, "/gadgets") {
				return nil, errors.New("no answer")
			}
			if strings.HasPrefix(req.URL.Path, "/apis/"+gadgetGroup) {
				time.Sleep(time.Duration(g.slow.Load()))
			}
			return next.RoundTrip(req)
		}
		if strings.HasPrefix(req.URL.Path, "/apis/"+gadgetGroup) {
			return &http.Response{StatusCode: http.StatusNotFound, Proto: "HTTP/1.1", ProtoMajor: 1, ProtoMinor: 1, Request: req,
				Header: http.Header{"Content-Type": {"text/plain; charset=utf-8"}}, Body: io.NopCloser(strings.NewReader("404 page not found\n"))}, nil
		}
		resp, err := next.RoundTrip(req)
		if err != nil || req.URL.Path != "/apis" {
			return resp, err
		}
		body, err := io.ReadAll(resp.Body)
		if err != nil {
			return nil, err
		}
		var doc map[string]any
		if err := json.Unmarshal(body, &doc); err != nil {
			return nil, fmt.Errorf("discovery in an unexpected form: %w", err)
		}
		for _, key := range []string{"items", "groups"} {
			if list, ok := doc[key].([]any); ok {
				doc[key] = slices.DeleteFunc(list, func(o any) bool { return strings.Contains(fmt.Sprint(o), "name:"+gadgetGroup) })
			}
		}
		if body, err = json.Marshal(doc); err != nil {
			return nil, err
		}
		resp.Body, resp.ContentLength = io.NopCloser(bytes.NewReader(body)), int64(len(body))
		resp.Header.Del("Content-Length")
		return resp, nil
	})
}

func withGadgets(t *testing.T, f func(g gadgets)) {
	g := gadgets{hidden: &atomic.Bool{}, slow: &atomic.Int64{}, broken: &atomic.Bool{}}
	inClusterOf(t, func(s *apitest.Server) Config {
		cfg := config(s, "garbage-collector-controller")
		clientFor := cfg.ClientFor
		cfg.Kube.Wrap(g.hiding)
		cfg.ClientFor = func(account string) *rest.Config { c := clientFor(account); c.Wrap(g.hiding); return c }
		return cfg
	}, func(c *cluster) {
		g.cluster = c
		json := c.server.Config()
		json.ContentType, json.AcceptContentTypes = "application/json", "application/json"
		g.Interface = dynamic.NewForConfigOrDie(json)
		g.define()
		time.Sleep(time.Second)
		f(g)
	})
}

// rounds is how often discovery changes; KNARR_ROUNDS says otherwise.
func rounds() int {
	if n, err := strconv.Atoi(os.Getenv("KNARR_ROUNDS")); err == nil {
		return n
	}
	return 150
}

// TestOwnersOutOfSight changes versions and removes and brings back the API of
// owners and of dependents: a watch that ends says nothing of objects, so all
// that lives must stay. What is really deleted meanwhile takes its dependents
// with it, and what is deleted with orphans leaves them.
func TestOwnersOutOfSight(t *testing.T) {
	withGadgets(t, func(g gadgets) {
		for i := range 5 {
			owner := g.create(fmt.Sprintf("owner-%d", i))
			for j := range 4 {
				mid := g.configMap(fmt.Sprintf("map-%d-%d", i, j), owner)
				g.create(fmt.Sprintf("leaf-%d-%d", i, j), mid)
			}
		}
		time.Sleep(time.Second)
		living := g.names()
		if len(living) != 5+20+20 {
			t.Fatalf("%d objects to begin with: %v", len(living), living)
		}
		expect := func(round int) {
			t.Helper()
			if got := g.names(); !slices.Equal(got, living) {
				gone := slices.DeleteFunc(slices.Clone(living), func(n string) bool { return slices.Contains(got, n) })
				more := slices.DeleteFunc(got, func(n string) bool { return slices.Contains(living, n) })
				t.Fatalf("round %d: deleted though their owners live: %v; left though their owners are gone: %v", round, gone, more)
			}
		}
		served := false
		for round := range rounds() {
			if round%3 == 2 {
				g.hidden.Store(!g.hidden.Load())
			} else {
				served = !served
				g.serve(served)
			}
			// Some changes are seen whole, others only half.
			time.Sleep(time.Duration(round%7) * 150 * time.Millisecond)
			expect(round)
			if round%10 == 5 {
				g.inDeletion(round, &living)
			}
		}
		g.hide(false)
		g.serve(true)
		time.Sleep(20 * time.Minute) // the longest delay of what is tried again
		expect(rounds())
	})
}

// inDeletion makes three owners with a dependent each and deletes the owners in the
// three ways there are.
func (g gadgets) inDeletion(round int, living *[]string) {
	g.Helper()
	for _, policy := range []metav1.DeletionPropagation{metav1.DeletePropagationBackground, metav1.DeletePropagationForeground, metav1.DeletePropagationOrphan} {
		name := fmt.Sprintf("%s-%d", strings.ToLower(string(policy)), round)
		owner := g.create(name)
		g.configMap(name+"-map", owner)
		g.create(name+"-leaf", owner)
		if policy == metav1.DeletePropagationOrphan {
			*living = append(*living, name+"-map", name+"-leaf")
		}
		g.no(g.resource().Delete(g.ctx, name, metav1.DeleteOptions{PropagationPolicy: &policy}))
	}
	slices.Sort(*living)
	g.hide(false)
	g.until("the doomed are gone", func() (bool, error) {
		got := g.names()
		return slices.Equal(got, *living), fmt.Errorf("there are %v, want %v", got, *living)
	})
}

// TestOrphansNotYetInSight deletes an owner with orphans while the API of its
// dependents, back again, has yet to list them: an owner without dependents in sight
// may have some.
func TestOrphansNotYetInSight(t *testing.T) {
	withGadgets(t, func(g gadgets) {
		owner := g.configMap("owner")
		g.create("leaf", owner)
		time.Sleep(time.Second)
		g.hide(true)
		time.Sleep(time.Second) // its watch has ended
		g.slow.Store(int64(10 * time.Second))
		g.hide(false)
		time.Sleep(time.Second) // its list is on its way
		g.no(g.client.CoreV1().ConfigMaps("default").Delete(g.ctx, "owner", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan)}))
		g.until("the owner is gone", func() (bool, error) {
			got := g.names()
			return !slices.Contains(got, "owner"), fmt.Errorf("there are %v", got)
		})
		time.Sleep(20 * time.Minute)
		if got := g.names(); !slices.Equal(got, []string{"leaf"}) {
			t.Errorf("there are %v, want the orphan", got)
		}
	})
}

// TestOrphanOutOfReach deletes an owner with orphans while the API of its dependent
// answers as if it were not served: that does not make the dependent gone.
func TestOrphanOutOfReach(t *testing.T) {
	withGadgets(t, func(g gadgets) {
		owner := g.configMap("owner")
		g.create("leaf", owner)
		time.Sleep(time.Second)
		g.hidden.Store(true) // nothing tells so: the collector finds out by its write
		g.no(g.client.CoreV1().ConfigMaps("default").Delete(g.ctx, "owner", metav1.DeleteOptions{PropagationPolicy: new(metav1.DeletePropagationOrphan)}))
		time.Sleep(10 * time.Second)
		g.hide(false)
		g.until("the owner is gone", func() (bool, error) {
			got := g.names()
			return !slices.Contains(got, "owner"), fmt.Errorf("there are %v", got)
		})
		time.Sleep(20 * time.Minute)
		if got := g.names(); !slices.Equal(got, []string{"leaf"}) {
			t.Errorf("there are %v, want the orphan", got)
		}
	})
}

// TestKindThatCannotBeListed: which one it is is in the log, and counted once.
func TestKindThatCannotBeListed(t *testing.T) {
	withGadgets(t, func(g gadgets) {
		const failures, v1 = "garbagecollector_controller_resources_sync_error_total", gadgetGroup + "/v1, Resource=gadgets"
		before := counted(t, failures)
		g.broken.Store(true)
		g.serve(true)
		time.Sleep(20 * time.Minute)
		if n := counted(t, failures) - before; n != 1 {
			t.Errorf("%v failures were counted", n)
		}
		if _, ok := unwatched.Load(v1); !ok {
			unwatched.Range(func(name, _ any) bool { t.Errorf("%q was said to fail, want %q", name, v1); return true })
			t.Error("nothing was said of it")
		}
	})
}

// TestAbsenceIsOfOneReference: who writes a reference with another's UID and a
// name that is not there must not make the others' dependents go.
func TestAbsenceIsOfOneReference(t *testing.T) {
	withGadgets(t, func(g gadgets) {
		g.serve(true)
		owner := g.create("owner")
		g.configMap("kept", owner)
		lie := owner
		lie.Name = "nobody"
		g.configMap("lie", lie)
		lie = owner
		lie.Kind, lie.APIVersion, lie.Name = "ConfigMap", "v1", "nobody"
		g.configMap("another-lie", lie)
		g.until("only the lies are gone", func() (bool, error) {
			got := strings.Join(g.names(), " ")
			return got == "kept owner", fmt.Errorf("there are %s", got)
		})
		g.hide(true) // the owner is out of sight
		time.Sleep(20 * time.Minute)
		if got := strings.Join(g.names(), " "); got != "kept owner" {
			t.Errorf("there are %s", got)
		}
	})
}
