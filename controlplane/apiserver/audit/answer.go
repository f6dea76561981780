package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	auditv1 "k8s.io/apiserver/pkg/apis/audit/v1"
	"k8s.io/client-go/kubernetes/scheme"
	"sigs.k8s.io/yaml"
)

// answer notes what a request is answered with.
type answer struct {
	http.ResponseWriter
	trail *Trail
	code  int
	long  bool // has an event when it starts
	keep  bool
	room  int  // bytes of a body that an event may have
	cut   bool // the body was longer
	body  bytes.Buffer
}

func (a *answer) Unwrap() http.ResponseWriter { return a.ResponseWriter }

func (a *answer) start(code int) {
	if a.code != 0 {
		return
	}
	a.code = code
	if a.long {
		a.trail.stage(auditv1.StageResponseStarted)
	}
}

func (a *answer) WriteHeader(code int) {
	a.start(code)
	a.ResponseWriter.WriteHeader(code)
}

func (a *answer) Write(b []byte) (int, error) {
	a.start(http.StatusOK)
	if a.keep && !a.cut {
		a.gather(b)
	}
	return a.ResponseWriter.Write(b)
}

// gather keeps the body for as long as a sink may take it.
func (a *answer) gather(b []byte) {
	if a.body.Len() == 0 {
		if a.keep = a.media() != "" && !a.trail.notes.Proxied(); !a.keep {
			return
		}
		a.room = min(longestBody, a.room*a.extraBytes(b))
	}
	if a.body.Len()+len(b) > a.room {
		a.cut, a.body = true, bytes.Buffer{}
		return
	}
	a.body.Write(b)
}

// extraBytes is how much longer a body may be than what becomes of it in an event,
// by how it begins.
func (a *answer) extraBytes(begin []byte) int {
	switch media := a.media(); {
	case a.trail.omitManaged || media == "application/yaml":
		return 16
	case media == "application/vnd.kubernetes.protobuf":
		return 2 // names are not in it, but empty fields are
	case bytes.HasPrefix(begin, []byte(`{"`)):
		return 1
	}
	return 16 // indented
}

func (a *answer) Flush() { _ = http.NewResponseController(a.ResponseWriter).Flush() }

func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a.start(http.StatusSwitchingProtocols)
	return http.NewResponseController(a.ResponseWriter).Hijack()
}

// media is the form of the answer's object, empty if it is none.
func (a *answer) media() string {
	media, _, _ := strings.Cut(a.Header().Get("Content-Type"), ";")
	switch media {
	case "application/json", "application/yaml", "application/vnd.kubernetes.protobuf":
		return media
	}
	return ""
}

// document is the answer's body as JSON, nil for what is no object.
func (a *answer) document(omitManaged bool) *runtime.Unknown {
	body := a.body.Bytes()
	switch a.media() {
	case "application/json":
		return document(json.RawMessage(body), omitManaged)
	case "application/yaml":
		data, err := yaml.YAMLToJSON(body)
		if err != nil {
			return nil
		}
		return document(json.RawMessage(data), omitManaged)
	case "application/vnd.kubernetes.protobuf":
		obj, _, err := scheme.Codecs.UniversalDeserializer().Decode(body, nil, nil)
		if err != nil {
			return nil
		}
		return document(obj, omitManaged)
	}
	return nil
}

// document is an object, or the bytes of one, as JSON.
func document(what any, omitManaged bool) *runtime.Unknown {
	if what == nil {
		return nil
	}
	data, ok := what.(json.RawMessage)
	if !ok {
		if obj, ok := what.(runtime.Object); ok && omitManaged {
			what = withoutManagedFields(obj)
		}
		var err error
		if data, err = json.Marshal(what); err != nil {
			return nil
		}
	} else if omitManaged && bytes.Contains(data, []byte(`"managedFields"`)) {
		var u unstructured.Unstructured
		if u.UnmarshalJSON(data) == nil {
			dropManaged(&u)
			data, _ = u.MarshalJSON()
		}
	}
	if data = bytes.TrimSpace(data); !json.Valid(data) {
		return nil
	}
	return &runtime.Unknown{Raw: data, ContentType: runtime.ContentTypeJSON}
}

// withoutManagedFields is a copy without managed fields.
func withoutManagedFields(obj runtime.Object) runtime.Object {
	obj = obj.DeepCopyObject()
	drop := func(o runtime.Object) error {
		if m, err := meta.Accessor(o); err == nil {
			m.SetManagedFields(nil)
		}
		return nil
	}
	if meta.IsListType(obj) {
		_ = meta.EachListItem(obj, drop)
	}
	_ = drop(obj)
	return obj
}

// dropManaged takes the managed fields out of an object, a list or a table.
func dropManaged(u *unstructured.Unstructured) {
	drop := func(obj any) {
		if obj, ok := obj.(map[string]any); ok {
			unstructured.RemoveNestedField(obj, "metadata", "managedFields")
		}
	}
	drop(u.Object)
	if items, ok := u.Object["items"].([]any); ok {
		for _, item := range items {
			drop(item)
		}
	}
	if rows, ok := u.Object["rows"].([]any); ok && u.GroupVersionKind().Group == metav1.GroupName && u.GetKind() == "Table" {
		for _, row := range rows {
			if row, ok := row.(map[string]any); ok {
				drop(row["object"])
			}
		}
	}
}
