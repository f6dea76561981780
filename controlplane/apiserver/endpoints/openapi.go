package endpoints

import (
	"bytes"
	"crypto/sha512"
	"encoding/json"
	"fmt"
	"io"
	"net/http"
	"runtime/debug"
	"strings"
	"sync"
	"time"

	openapiv2 "github.com/google/gnostic-models/openapiv2"
	openapiv3 "github.com/google/gnostic-models/openapiv3"
	"github.com/klauspost/compress/gzip"
	"google.golang.org/protobuf/proto"
	"k8s.io/apimachinery/pkg/runtime/schema"

	"knarr/controlplane/apiserver/endpoints/openapi"
	"knarr/controlplane/apiserver/registry"
)

// openAPI serves the schemas of one table's kinds. A document is made when it
// is first asked for and kept compressed; what is never asked for costs nothing.
type openAPI struct {
	build string
	all   []registry.Resource
	parts map[string]*openAPIPart // of v3, by their paths
	hash  string                  // of v2

	mu   sync.Mutex
	docs map[string][]byte // compressed, by path and form
	made string            // the hash of v2 in docs
}

// An openAPIPart is a document of v3, for a group version or for paths that tell
// of the API.
type openAPIPart struct {
	hash  string
	build func() ([]byte, error)
}

func newOpenAPI(s *Server, t *table) *openAPI {
	o := &openAPI{
		build: buildID(s.cfg.Version.GitVersion), all: t.resources,
		parts: map[string]*openAPIPart{}, docs: map[string][]byte{},
	}
	versions := map[schema.GroupVersion][]registry.Resource{}
	for _, res := range t.resources {
		gv := res.GVR().GroupVersion()
		versions[gv] = append(versions[gv], res)
	}
	for gv, list := range versions {
		o.parts[strings.TrimPrefix(versionPath(gv), "/")] = &openAPIPart{o.hashOf(gv.String(), list), func() ([]byte, error) { return openapi.V3(gv, list) }}
	}
	for _, path := range openapi.Paths(t.resources) {
		o.parts[path] = &openAPIPart{o.hashOf(path, nil), func() ([]byte, error) { return openapi.V3Path(path, t.resources) }}
	}
	o.hash = o.hashOf("", o.all)
	return o
}

// buildID distinguishes programs with other types.
func buildID(version string) string {
	info, ok := debug.ReadBuildInfo()
	if !ok {
		return version
	}
	id := version + info.Main.Version
	for _, s := range info.Settings {
		if strings.HasPrefix(s.Key, "vcs.") {
			id += s.Value
		}
	}
	for _, d := range info.Deps {
		if strings.HasPrefix(d.Path, "k8s.io/") {
			id += d.Version
		}
	}
	return id
}

// hashOf names a document's content without making it: it follows from the
// program and the kinds, with the schemas of custom ones.
func (o *openAPI) hashOf(name string, resources []registry.Resource) string {
	h := sha512.New()
	io.WriteString(h, o.build+"\n"+name)
	for _, res := range resources {
		fmt.Fprintln(h, res.GVK(), res.GVR().Resource)
		for _, sub := range res.Subresources() {
			fmt.Fprintln(h, sub.Name, sub.Kind, sub.Verbs)
		}
		if c, ok := res.(openapi.Custom); ok {
			io.WriteString(h, c.SchemaID())
		}
	}
	return fmt.Sprintf("%X", h.Sum(nil))
}

func (o *openAPI) serve(w http.ResponseWriter, r *http.Request, path string, remote *Remote) {
	switch {
	case path == "/openapi/v2":
		proto := o.accepts(r, "v2")
		media := typeJSON
		if proto {
			media = "application/com.github.proto-openapi.spec.v2.v1.0+protobuf"
		}
		hash, build := o.v2(remote)
		o.write(w, r, "v2", hash, media, proto, build)
	case path == "/openapi/v3":
		o.serveIndex(w, r, remote)
	case strings.HasPrefix(path, "/openapi/v3/"):
		o.serveVersion(w, r, strings.TrimPrefix(path, "/openapi/v3/"), remote)
	default:
		http.NotFound(w, r)
	}
}

func (o *openAPI) serveVersion(w http.ResponseWriter, r *http.Request, path string, remote *Remote) {
	name, part := path, o.parts[path]
	if part == nil && remote != nil {
		if gv, ok := versionOfPath(path); ok && remote.Converted[gv] != nil {
			elsewhere := remote.Converted[gv]
			name, part = "", &openAPIPart{elsewhere.Hash, func() ([]byte, error) { return elsewhere.JSON, nil }}
		}
	}
	if part == nil {
		w.WriteHeader(http.StatusNotFound)
		return
	}
	if asked := r.URL.Query().Get("hash"); asked != "" {
		if asked != part.hash {
			http.Redirect(w, r, r.URL.Path+"?hash="+part.hash, http.StatusMovedPermanently)
			return
		}
		w.Header().Set("Cache-Control", "public, immutable")
		w.Header().Set("Expires", time.Now().AddDate(1, 0, 0).UTC().Format(http.TimeFormat))
	}
	proto := o.accepts(r, "v3")
	media := typeJSON
	if proto {
		media = "application/com.github.proto-openapi.spec.v3.v1.0+protobuf"
	}
	o.write(w, r, name, part.hash, media, proto, part.build)
}

func versionOfPath(path string) (schema.GroupVersion, bool) {
	parts := strings.Split(path, "/")
	switch {
	case len(parts) == 2 && parts[0] == "api":
		return schema.GroupVersion{Version: parts[1]}, true
	case len(parts) == 3 && parts[0] == "apis":
		return schema.GroupVersion{Group: parts[1], Version: parts[2]}, true
	}
	return schema.GroupVersion{}, false
}

// accepts says that the client wants protobuf.
func (o *openAPI) accepts(r *http.Request, v string) bool {
	for _, c := range parseAccept(r.Header.Get("Accept")) {
		switch c.media {
		case "application/com.github.proto-openapi.spec." + v + ".v1.0+protobuf", "application/com.github.proto-openapi.spec." + v + "@v1.0+protobuf":
			return true
		case typeJSON, "*/*", "application/*":
			return false
		}
	}
	return false
}

func (o *openAPI) serveIndex(w http.ResponseWriter, r *http.Request, remote *Remote) {
	type path struct {
		URL string `json:"serverRelativeURL"`
	}
	paths := map[string]path{}
	for key, part := range o.parts {
		paths[key] = path{"/openapi/v3/" + key + "?hash=" + part.hash}
	}
	if remote != nil {
		for key, url := range remote.Documents {
			paths[key] = path{url}
		}
	}
	data, err := json.Marshal(map[string]any{"paths": paths})
	if err != nil {
		writeStatus(w, r, err)
		return
	}
	etag := fmt.Sprintf(`"%X"`, sha512.Sum512(data))
	w.Header().Set("ETag", etag)
	w.Header().Set("Vary", "Accept")
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	writeBody(w, r, http.StatusOK, typeJSON, data)
}

func (o *openAPI) write(w http.ResponseWriter, r *http.Request, name, hash, media string, asProto bool, build func() ([]byte, error)) {
	h := w.Header()
	etag := `"` + hash + `"`
	if asProto {
		etag = `"` + hash[:len(hash)-1] + `P"`
	}
	h.Set("ETag", etag)
	h.Set("Vary", "Accept")
	if r.Header.Get("If-None-Match") == etag {
		w.WriteHeader(http.StatusNotModified)
		return
	}
	packed, err := o.document(name, asProto, build)
	if err != nil {
		writeStatus(w, r, err)
		return
	}
	h.Set("Content-Type", media)
	if acceptsGzip(r) {
		h.Set("Content-Encoding", "gzip")
		h.Add("Vary", "Accept-Encoding")
		w.Write(packed)
		return
	}
	z, err := gzip.NewReader(bytes.NewReader(packed))
	if err != nil {
		writeStatus(w, r, err)
		return
	}
	io.Copy(w, z) // an error is the client gone
}

// document is the compressed document, made at most once if it has a name.
func (o *openAPI) document(name string, asProto bool, build func() ([]byte, error)) ([]byte, error) {
	key := fmt.Sprint(name, " ", asProto)
	o.mu.Lock()
	defer o.mu.Unlock()
	if packed := o.docs[key]; packed != nil {
		return packed, nil
	}
	data, err := build()
	if err == nil && asProto {
		data, err = protoDocument(name, data)
	}
	if err != nil {
		return nil, fmt.Errorf("OpenAPI of %s: %w", name, err)
	}
	var b bytes.Buffer
	z, err := gzip.NewWriterLevel(&b, gzip.DefaultCompression)
	if err != nil {
		return nil, err
	}
	if _, err := z.Write(data); err != nil {
		return nil, err
	}
	if err := z.Close(); err != nil {
		return nil, err
	}
	packed := bytes.Clone(b.Bytes())
	if name != "" {
		o.docs[key] = packed
	}
	return packed, nil
}

func protoDocument(name string, data []byte) ([]byte, error) {
	if name == "v2" {
		doc, err := openapiv2.ParseDocument(data)
		if err != nil {
			return nil, err
		}
		return proto.Marshal(doc)
	}
	doc, err := openapiv3.ParseDocument(data)
	if err != nil {
		return nil, err
	}
	return proto.Marshal(doc)
}
