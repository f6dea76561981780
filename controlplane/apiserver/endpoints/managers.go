package endpoints

import (
	"fmt"
	"net/http"
	"reflect"
	"strings"
	"sync"
	"time"

	certificatesv1 "k8s.io/api/certificates/v1"
	apiextensionsv1 "k8s.io/apiextensions-apiserver/pkg/apis/apiextensions/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/apis/meta/v1/unstructured"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/managedfields"
	applyconfigurations "k8s.io/client-go/applyconfigurations"
	"k8s.io/client-go/kubernetes/scheme"
	apiregistrationv1 "k8s.io/kube-aggregator/pkg/apis/apiregistration/v1"
	"sigs.k8s.io/structured-merge-diff/v6/fieldpath"

	"knarr/controlplane/apiserver/endpoints/openapi"
	"knarr/controlplane/apiserver/endpoints/ownership"
	"knarr/controlplane/apiserver/registry"
)

// maxManager is the longest name of a field manager.
const maxManager = 128

// manager is who owns what this request sets: its fieldManager, or the first
// part of its user agent.
func (c *call) manager(explicit string) string {
	if explicit != "" {
		return explicit
	}
	agent, _, _ := strings.Cut(c.r.UserAgent(), "/")
	if len(agent) > maxManager {
		agent = agent[:maxManager]
	}
	return agent
}

// managers tracks who owns which field of one kind.
type managers struct {
	entry *entry
	empty registry.Object // nobody changes it
	mu    sync.Mutex
	by    map[string]*managedfields.FieldManager // by subresource
}

func newManagers(e *entry) *managers {
	return &managers{entry: e, empty: e.res.New(), by: map[string]*managedfields.FieldManager{}}
}

// definitionTypes know how CustomResourceDefinitions are merged, which client-go
// does not.
var definitionTypes = sync.OnceValues(func() (managedfields.TypeConverter, error) {
	models, err := openapi.Models(apiextensionsv1.SchemeGroupVersion.WithKind("CustomResourceDefinition"), reflect.TypeFor[apiextensionsv1.CustomResourceDefinition]())
	if err != nil {
		return nil, err
	}
	return managedfields.NewTypeConverter(models, false)
})

// apiServiceTypes do the same for APIServices.
var apiServiceTypes = sync.OnceValues(func() (managedfields.TypeConverter, error) {
	models, err := openapi.Models(apiregistrationv1.SchemeGroupVersion.WithKind("APIService"), reflect.TypeFor[apiregistrationv1.APIService]())
	if err != nil {
		return nil, err
	}
	return managedfields.NewTypeConverter(models, false)
})

// types is what merges objects of e's kind.
func (e *entry) types() (managedfields.TypeConverter, error) {
	switch {
	case e.custom != nil:
		return e.custom.Types()
	case e.gvk.Group == apiextensionsv1.GroupName:
		return definitionTypes()
	case e.gvk.Group == apiregistrationv1.GroupName:
		return apiServiceTypes()
	}
	return typeConverter(), nil
}

// typeConverter knows the merge schema of all built-in kinds. Parsing it costs
// time and memory, so that it waits for the first apply.
var typeConverter = sync.OnceValue(func() managedfields.TypeConverter {
	return applyconfigurations.NewTypeConverter(scheme.Scheme)
})

func (m *managers) of(sub string) (*managedfields.FieldManager, error) {
	m.mu.Lock()
	defer m.mu.Unlock()
	if f := m.by[sub]; f != nil {
		return f, nil
	}
	e := m.entry
	version := fieldpath.APIVersion(e.gvr.GroupVersion().String())
	reset := map[fieldpath.APIVersion]fieldpath.Filter{}
	if paths := resetPaths(e, sub); len(paths) > 0 {
		reset[version] = fieldpath.NewExcludeSetFilter(fieldpath.NewSet(paths...))
	}
	var (
		f   *managedfields.FieldManager
		err error
		own = sameVersion{e.gvk}
	)
	if e.custom != nil {
		f, err = e.customManager(sub, reset)
	} else if types, terr := e.types(); terr != nil {
		err = terr
	} else {
		f, err = managedfields.NewDefaultFieldManager(types, own, own, own, e.gvk, e.gvr.GroupVersion(), sub, reset)
	}
	if err == nil {
		m.by[sub] = f
	}
	return f, err
}

// resetFields are what a write through sub cannot change, so cannot own.
func resetFields(e *entry, sub string) []string {
	_, status := e.subs["status"]
	switch {
	case sub == "" && e.gvk.Group == certificatesv1.GroupName:
		return resetRequest
	case sub == "status" && (e.custom != nil || statusAlone[e.qualified]):
		return resetCustom
	case sub == "status" && e.qualified == "deployments.apps":
		return resetDeployment
	case sub == "status" && e.qualified == "pods":
		return resetPod
	case sub == "" && status:
		return resetStatus
	case sub == "status":
		return resetSpec
	}
	return nil
}

// statusAlone are the kinds whose status writes change no metadata.
var statusAlone = map[string]bool{
	"servicecidrs.networking.k8s.io": true, "resourceclaims.resource.k8s.io": true, "volumeattachments.storage.k8s.io": true,
	"flowschemas.flowcontrol.apiserver.k8s.io": true, "prioritylevelconfigurations.flowcontrol.apiserver.k8s.io": true,
	"validatingadmissionpolicies.admissionregistration.k8s.io": true, "apiservices.apiregistration.k8s.io": true,
}

var (
	resetDeployment = []string{"f:spec", "f:metadata f:labels"}
	resetPod        = []string{"f:spec", "f:metadata f:deletionTimestamp", "f:metadata f:ownerReferences"}
)

var resetRequest = []string{"f:spec", "f:status"}

var resetStatus, resetSpec, resetCustom = []string{"f:status"}, []string{"f:spec"}, []string{"f:metadata", "f:spec"}

func resetPaths(e *entry, sub string) (out []fieldpath.Path) {
	for _, f := range resetFields(e, sub) {
		var parts []any
		for part := range strings.FieldsSeq(f) {
			parts = append(parts, strings.TrimPrefix(part, "f:"))
		}
		out = append(out, fieldpath.MakePathOrDie(parts...))
	}
	return out
}

// update records in obj that manager set what differs from old.
func (m *managers) update(old, obj registry.Object, manager, sub string) registry.Object {
	e := m.entry
	if e.custom != nil {
		return m.updateCustom(old, obj, manager, sub)
	}
	q := ownership.Request{
		Old: m.empty, Obj: obj, Creating: old == nil, Sent: obj.GetManagedFields(),
		Manager: manager, APIVersion: e.gvr.GroupVersion().String(), Subresource: sub, Reset: resetFields(e, sub), Now: time.Now(),
	}
	if old != nil {
		q.Old, q.Live = old, old.GetManagedFields()
	}
	obj.SetManagedFields(ownership.Update(q))
	return obj
}

// updateCustom does the same for kinds without a Go type.
func (m *managers) updateCustom(old, obj registry.Object, manager, sub string) registry.Object {
	f, err := m.of(sub)
	if err != nil {
		obj.SetManagedFields(nil)
		return obj
	}
	live := registry.Object(nil)
	if old == nil {
		live = m.entry.res.New()
	} else {
		live = copyOf(old)
	}
	setKind(live, m.entry.gvk)
	setKind(obj, m.entry.gvk)
	out := f.UpdateNoErrors(live, obj, manager).(registry.Object)
	if m.entry.custom == nil {
		setKind(out, schema.GroupVersionKind{})
	}
	return out
}

// apply merges what manager wants into old, which is nil when there is none.
func (m *managers) apply(old registry.Object, want *unstructured.Unstructured, manager, sub string, force bool) (registry.Object, error) {
	f, err := m.of(sub)
	if err != nil {
		return nil, err
	}
	var live registry.Object
	if old == nil {
		live = m.entry.res.New()
	} else {
		live = copyOf(old)
	}
	setKind(live, m.entry.gvk)
	out, err := f.Apply(live, want, manager, force)
	if err != nil {
		return nil, err
	}
	obj, ok := out.(registry.Object)
	if u, is := out.(*unstructured.Unstructured); is && m.entry.custom == nil {
		obj = m.entry.res.New()
		if err := runtime.DefaultUnstructuredConverter.FromUnstructured(u.Object, obj); err != nil {
			return nil, statusError(http.StatusInternalServerError, "", fmt.Sprintf("failed to convert new object (%s/%s; %v) to proper version: unable to convert unstructured object to %v: %v",
				want.GetNamespace(), want.GetName(), want.GroupVersionKind(), m.entry.gvk, err))
		}
	} else if !ok {
		return nil, errNotAnObject
	}
	if m.entry.custom == nil {
		setKind(obj, schema.GroupVersionKind{})
	}
	return obj, nil
}

const errNotAnObject = constError("the merged value is not an object")

// timesOnly says that two lists of managers differ, and only in their times.
func timesOnly(a, b []metav1.ManagedFieldsEntry) bool {
	if len(a) != len(b) {
		return false
	}
	differ := false
	for i := range a {
		x, y := &a[i], &b[i]
		if x.Manager != y.Manager || x.Operation != y.Operation || x.APIVersion != y.APIVersion ||
			x.Subresource != y.Subresource || string(rawFields(x)) != string(rawFields(y)) {
			return false
		}
		differ = differ || !x.Time.Equal(y.Time)
	}
	return differ
}

func rawFields(e *metav1.ManagedFieldsEntry) []byte {
	if e.FieldsV1 == nil {
		return nil
	}
	return e.FieldsV1.GetRawBytes()
}

// sameVersion converts nothing: a kind is handled in the one version it is
// served in. It is what the merge machinery calls converter, defaulter and
// creater.
type sameVersion struct{ gvk schema.GroupVersionKind }

func (v sameVersion) Convert(in, out, context any) error { return errNoConversion }

func (v sameVersion) ConvertToVersion(in runtime.Object, gv runtime.GroupVersioner) (runtime.Object, error) {
	if in.GetObjectKind().GroupVersionKind().Empty() {
		in.GetObjectKind().SetGroupVersionKind(v.gvk)
	}
	return in, nil
}

func (v sameVersion) ConvertFieldLabel(_ schema.GroupVersionKind, label, value string) (string, string, error) {
	return label, value, nil
}

func (v sameVersion) Default(runtime.Object) {}

func (v sameVersion) New(kind schema.GroupVersionKind) (runtime.Object, error) {
	return scheme.Scheme.New(kind)
}

const errNoConversion = constError("no other version is known")
