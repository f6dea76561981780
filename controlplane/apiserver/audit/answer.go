package audit

import (
	"bufio"
	"bytes"
	"encoding/json"
	"net"
	"net/http"
	"strings"

	"k8s.io/apimachinery/pkg/api/meta"
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
	if a.keep {
		a.body.Write(b)
	}
	return a.ResponseWriter.Write(b)
}

func (a *answer) Flush() { _ = http.NewResponseController(a.ResponseWriter).Flush() }

func (a *answer) Hijack() (net.Conn, *bufio.ReadWriter, error) {
	a.start(http.StatusSwitchingProtocols)
	return http.NewResponseController(a.ResponseWriter).Hijack()
}

// document is the answer's body as JSON, nil for what is no object.
func (a *answer) document(omitManaged bool) *runtime.Unknown {
	media, _, _ := strings.Cut(a.Header().Get("Content-Type"), ";")
	body := a.body.Bytes()
	switch media {
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
			what = unmanaged(obj)
		}
		var err error
		if data, err = json.Marshal(what); err != nil {
			return nil
		}
	} else if omitManaged && bytes.Contains(data, []byte(`"managedFields"`)) {
		var u unstructured.Unstructured
		if u.UnmarshalJSON(data) == nil {
			if u.IsList() {
				if list, err := u.ToList(); err == nil {
					data, _ = unmanaged(list).(*unstructured.UnstructuredList).MarshalJSON()
				}
			} else {
				data, _ = unmanaged(&u).(*unstructured.Unstructured).MarshalJSON()
			}
		}
	}
	if data = bytes.TrimSpace(data); !json.Valid(data) {
		return nil
	}
	return &runtime.Unknown{Raw: data, ContentType: runtime.ContentTypeJSON}
}

// unmanaged is a copy without managed fields.
func unmanaged(obj runtime.Object) runtime.Object {
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
