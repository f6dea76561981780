package endpoints

import (
	"crypto/sha256"
	"crypto/sha512"
	"encoding/base64"
	"fmt"
	"net/http"
	"slices"
	"sort"
	"strings"
	"sync"

	apidiscoveryv2 "k8s.io/api/apidiscovery/v2"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/client-go/kubernetes/scheme"

	"knarr/controlplane/apiserver/registry"
)

const (
	scopeNamespaced = apidiscoveryv2.ScopeNamespace
	scopeCluster    = apidiscoveryv2.ScopeCluster
)

// A discovery is what the server says it serves, made from the table.
type discovery struct {
	groups   []*metav1.APIGroup // "" first
	byGroup  map[string]*metav1.APIGroup
	lists    map[schema.GroupVersion]*metav1.APIResourceList
	combined []apidiscoveryv2.APIGroupDiscovery

	mu     sync.Mutex
	cached map[string]*aggregated
}

// An aggregated document and its hash.
type aggregated struct {
	body []byte
	etag string
}

func newDiscovery(s *Server, t *table) *discovery {
	d := &discovery{
		byGroup: map[string]*metav1.APIGroup{}, lists: map[schema.GroupVersion]*metav1.APIResourceList{},
		cached: map[string]*aggregated{},
	}
	resources := map[schema.GroupVersion][]registry.Resource{}
	for _, res := range t.resources {
		gv := res.GVR().GroupVersion()
		if resources[gv] == nil {
			d.addVersion(gv)
		}
		resources[gv] = append(resources[gv], res)
	}
	for gv, list := range resources {
		sort.SliceStable(list, func(i, j int) bool { return list[i].Names().Plural < list[j].Names().Plural })
		d.lists[gv] = resourceList(gv, list)
	}
	for _, g := range d.groups {
		item := apidiscoveryv2.APIGroupDiscovery{}
		item.Name = g.Name
		for _, v := range g.Versions {
			gv := schema.GroupVersion{Group: g.Name, Version: v.Version}
			version := apidiscoveryv2.APIVersionDiscovery{Version: v.Version, Freshness: apidiscoveryv2.DiscoveryFreshnessCurrent}
			for _, res := range resources[gv] {
				version.Resources = append(version.Resources, resourceDiscovery(res))
			}
			item.Versions = append(item.Versions, version)
		}
		d.combined = append(d.combined, item)
	}
	return d
}

func (d *discovery) addVersion(gv schema.GroupVersion) {
	g := d.byGroup[gv.Group]
	v := metav1.GroupVersionForDiscovery{GroupVersion: gv.String(), Version: gv.Version}
	if g == nil {
		g = &metav1.APIGroup{Name: gv.Group, PreferredVersion: v}
		d.byGroup[gv.Group] = g
		d.groups = append(d.groups, g)
	}
	g.Versions = append(g.Versions, v)
}

// customVerbs are those of custom kinds, in upstream's order.
var customVerbs = []string{"delete", "deletecollection", "get", "list", "patch", "create", "update", "watch"}

func servedVerbs(res registry.Resource) metav1.Verbs {
	if c, ok := res.(registry.Custom); ok {
		if c.Ending() {
			return metav1.Verbs{"delete", "deletecollection", "get", "list", "watch"}
		}
		return slices.Clone(metav1.Verbs(customVerbs))
	}
	var out metav1.Verbs
	for _, v := range registry.AllVerbs {
		if res.Supports(v) {
			out = append(out, v)
		}
	}
	return out
}

func sortedVerbs(verbs []string) metav1.Verbs {
	out := slices.Clone(verbs)
	sort.Strings(out)
	return out
}

func sortedSubs(res registry.Resource) []registry.Sub {
	subs := res.Subresources()
	if _, ok := res.(registry.Custom); ok {
		return subs // status first, as upstream has it
	}
	sort.SliceStable(subs, func(i, j int) bool { return subs[i].Name < subs[j].Name })
	return subs
}

// storageHash names the kind and version in which objects are stored.
func storageHash(res registry.Resource) string {
	if res.IsVirtual() {
		return ""
	}
	gvk := registry.StoredKind(res)
	if gvk.Empty() {
		return ""
	}
	sum := sha256.Sum256([]byte(gvk.Group + "/" + gvk.Version + "/" + gvk.Kind))
	return base64.StdEncoding.EncodeToString(sum[:8])
}

// resourceList is the discovery document of one group version.
func resourceList(gv schema.GroupVersion, resources []registry.Resource) *metav1.APIResourceList {
	list := &metav1.APIResourceList{GroupVersion: gv.String(), APIResources: []metav1.APIResource{}}
	for _, res := range resources {
		names := res.Names()
		list.APIResources = append(list.APIResources, metav1.APIResource{
			Name: names.Plural, SingularName: names.Singular, Namespaced: res.Namespaced(), Kind: res.GVK().Kind,
			Verbs: servedVerbs(res), ShortNames: names.Short, Categories: names.Categories,
			StorageVersionHash: storageHash(res),
		})
		for _, sub := range sortedSubs(res) {
			r := metav1.APIResource{
				Name: names.Plural + "/" + sub.Name, Namespaced: res.Namespaced(), Kind: sub.Kind.Kind,
				Verbs: sortedVerbs(sub.Verbs),
			}
			if sub.Kind.GroupVersion() != gv {
				r.Group, r.Version = sub.Kind.Group, sub.Kind.Version
			}
			list.APIResources = append(list.APIResources, r)
		}
	}
	return list
}

// discoveryKind leaves group and version out where they are the document's.
func discoveryKind(gvk schema.GroupVersionKind, gv schema.GroupVersion) *metav1.GroupVersionKind {
	if gvk.GroupVersion() == gv {
		return &metav1.GroupVersionKind{Kind: gvk.Kind}
	}
	return &metav1.GroupVersionKind{Group: gvk.Group, Version: gvk.Version, Kind: gvk.Kind}
}

func resourceDiscovery(res registry.Resource) apidiscoveryv2.APIResourceDiscovery {
	names, gv := res.Names(), res.GVR().GroupVersion()
	scope := scopeCluster
	if res.Namespaced() {
		scope = scopeNamespaced
	}
	out := apidiscoveryv2.APIResourceDiscovery{
		Resource: names.Plural, ResponseKind: discoveryKind(res.GVK(), gv), Scope: scope, SingularResource: names.Singular,
		Verbs: servedVerbs(res), ShortNames: names.Short, Categories: names.Categories,
	}
	for _, sub := range sortedSubs(res) {
		out.Subresources = append(out.Subresources, apidiscoveryv2.APISubresourceDiscovery{
			Subresource: sub.Name, ResponseKind: discoveryKind(sub.Kind, gv), Verbs: sortedVerbs(sub.Verbs)})
	}
	return out
}

// servePath serves what is not a resource.
func (s *Server) servePath(w http.ResponseWriter, r *http.Request) {
	path := strings.TrimSuffix(r.URL.Path, "/")
	if strings.HasPrefix(path, "/openapi/") {
		s.table.Load().openapi.serve(w, r, path, s.remote.Load())
		return
	}
	known := path == "" || path == "/version" || strings.HasPrefix(path+"/", "/api/") || strings.HasPrefix(path+"/", "/apis/")
	// Groups are listed whatever the method is.
	if known && path != "/apis" && (!strings.HasPrefix(path, "/apis/") || strings.Count(path, "/") != 2) &&
		r.Method != http.MethodGet && r.Method != http.MethodHead {
		writeStatus(w, r, methodNotAllowed())
		return
	}
	switch path {
	case "":
		s.writePaths(w)
		return
	case "/version":
		if Unroutable(w, r, typeJSON) {
			return
		}
		data, err := encodeJSON(s.cfg.Version, true)
		if err != nil {
			writeStatus(w, r, err)
			return
		}
		writeBody(w, r, http.StatusOK, typeJSON, data)
		return
	}
	if path == "/api" || path == "/apis" || strings.HasPrefix(path, "/api/") || strings.HasPrefix(path, "/apis/") {
		s.discovery().serve(w, r, path)
		return
	}
	if strings.HasPrefix(path, "/openid/v1/jwks/") {
		writeStatus(w, r, noResource())
		return
	}
	http.NotFound(w, r)
}

func (s *Server) writePaths(w http.ResponseWriter) {
	d := s.discovery()
	paths := []string{"/api", "/apis", "/openapi/v2", "/openapi/v3", "/version"}
	for _, g := range d.groups {
		if g.Name != "" {
			paths = append(paths, "/apis/"+g.Name)
		}
		for _, v := range g.Versions {
			paths = append(paths, versionPath(schema.GroupVersion{Group: g.Name, Version: v.Version}))
		}
	}
	paths = append(paths, s.cfg.Paths...)
	sort.Strings(paths)
	data, err := encodeJSON(metav1.RootPaths{Paths: slices.Compact(paths)}, true)
	if err != nil {
		return
	}
	w.Header().Set("Content-Type", typeJSON)
	w.Write(data)
}

// versionPath is where a group version is served.
func versionPath(gv schema.GroupVersion) string {
	if gv.Group == "" {
		return "/api/" + gv.Version
	}
	return "/apis/" + gv.Group + "/" + gv.Version
}

func (d *discovery) serve(w http.ResponseWriter, r *http.Request, path string) {
	var obj runtime.Object
	kind := "APIResourceList"
	parts := strings.Split(path, "/")[1:]
	switch {
	case path == "/api", path == "/apis":
		if version := wantsAggregated(r); version != "" {
			d.serveAggregated(w, r, path == "/api", version)
			return
		}
		if path == "/api" {
			kind = "APIVersions"
			obj = &metav1.APIVersions{Versions: []string{"v1"}, ServerAddressByClientCIDRs: []metav1.ServerAddressByClientCIDR{
				{ClientCIDR: "0.0.0.0/0", ServerAddress: serverAddress(r)}}}
			break
		}
		kind = "APIGroupList"
		list := &metav1.APIGroupList{Groups: []metav1.APIGroup{}}
		for _, g := range d.groups {
			if g.Name != "" {
				list.Groups = append(list.Groups, *g.DeepCopy())
			}
		}
		obj = list
	case parts[0] == "apis" && len(parts) == 2:
		if g := d.byGroup[parts[1]]; g != nil && parts[1] != "" {
			kind, obj = "APIGroup", g.DeepCopy()
		}
	case parts[0] == "api" && len(parts) == 2:
		if l := d.lists[schema.GroupVersion{Version: parts[1]}]; l != nil {
			obj = l.DeepCopy()
		}
	case parts[0] == "apis" && len(parts) == 3:
		if l := d.lists[schema.GroupVersion{Group: parts[1], Version: parts[2]}]; l != nil {
			obj = l.DeepCopy()
		}
	}
	if obj == nil {
		// Below a built-in group there is a router of its own.
		if parts[0] == "api" || len(parts) > 1 && d.byGroup[parts[1]] != nil && scheme.Scheme.IsGroupRegistered(parts[1]) {
			writeStatus(w, r, noResource())
			return
		}
		http.NotFound(w, r)
		return
	}
	if (parts[0] == "api" || len(parts) == 3 || parts[len(parts)-1] == "apiregistration.k8s.io") && !routable(r.Header.Get("Accept")) {
		writeStatus(w, r, unroutable(typeJSON+", "+typeYAML+", "+typeProtobuf))
		return
	}
	out, err := negotiate(r, false)
	if err != nil || out.as != "" {
		if err == nil {
			err = notAcceptable()
		}
		writeStatus(w, r, err)
		return
	}
	gvk := schema.GroupVersionKind{Version: "v1", Kind: kind}
	if path == "/api/v1" || kind == "APIVersions" {
		gvk.Version = "" // upstream's oldest documents have none of their own
	}
	w.Header().Set("Vary", "Accept")
	writeObject(w, r, out, http.StatusOK, obj, gvk)
}

// serverAddress is where the client has reached us.
func serverAddress(r *http.Request) string {
	if addr, ok := r.Context().Value(http.LocalAddrContextKey).(interface{ String() string }); ok {
		return addr.String()
	}
	return r.Host
}

// wantsAggregated is the version of aggregated discovery that is asked for, or
// "" when the plain documents come first.
func wantsAggregated(r *http.Request) string {
	for _, c := range parseAccept(r.Header.Get("Accept")) {
		if c.media != typeJSON && c.media != typeProtobuf && c.media != "*/*" {
			continue
		}
		if c.params["as"] == "APIGroupDiscoveryList" && c.params["g"] == "apidiscovery.k8s.io" {
			if v := c.params["v"]; v == "v2" {
				if c.media == typeProtobuf {
					return v + " protobuf"
				}
				return v
			}
			continue
		}
		return ""
	}
	return ""
}

func (d *discovery) serveAggregated(w http.ResponseWriter, r *http.Request, core bool, want string) {
	version, proto, _ := strings.Cut(want, " ")
	doc, err := d.aggregate(core, version, proto != "")
	if err != nil {
		writeStatus(w, r, err)
		return
	}
	h := w.Header()
	h.Set("Vary", "Accept")
	h.Set("ETag", doc.etag)
	h.Set("Cache-Control", "public")
	if r.Header.Get("If-None-Match") == doc.etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	media := typeJSON
	if proto != "" {
		media = typeProtobuf
	}
	writeBody(w, r, http.StatusOK, media+";g=apidiscovery.k8s.io;v="+version+";as=APIGroupDiscoveryList", doc.body)
}

// aggregate makes a document once per form.
func (d *discovery) aggregate(core bool, version string, proto bool) (*aggregated, error) {
	key := fmt.Sprint(core, version, proto)
	d.mu.Lock()
	defer d.mu.Unlock()
	if doc := d.cached[key]; doc != nil {
		return doc, nil
	}
	list := &apidiscoveryv2.APIGroupDiscoveryList{}
	for _, g := range d.combined {
		if (g.Name == "") == core {
			list.Items = append(list.Items, g)
		}
	}
	gvk := schema.GroupVersionKind{Group: "apidiscovery.k8s.io", Version: version, Kind: "APIGroupDiscoveryList"}
	setKind(list, gvk)
	out := output{}
	if proto {
		out.format = formatProtobuf
	}
	body, err := encode(out, list, gvk)
	if err != nil {
		return nil, err
	}
	sum := sha512.Sum512(body)
	doc := &aggregated{body: body, etag: fmt.Sprintf(`"%X"`, sum)}
	d.cached[key] = doc
	return doc, nil
}
