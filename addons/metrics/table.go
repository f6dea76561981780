package metrics

import (
	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/serializer/protobuf"
	metricsv1beta1 "k8s.io/metrics/pkg/apis/metrics/v1beta1"
)

const protobufType = runtime.ContentTypeProtobuf

var protobufCodec = func() runtime.Codec {
	scheme := runtime.NewScheme()
	_ = metricsv1beta1.AddToScheme(scheme) // it has no way to fail
	s := protobuf.NewSerializer(scheme, scheme)
	return runtime.NewCodec(s, s)
}()

// columns are metrics-server's.
var columns = []metav1.TableColumnDefinition{
	{Name: "Name", Type: "string", Format: "name", Description: "Name of the resource"},
	{Name: "cpu", Type: "string", Format: "quantity"},
	{Name: "memory", Type: "string", Format: "quantity"},
	{Name: "Window", Type: "string", Format: "duration"},
}

// table is an object or a list as kubectl get shows it; include says how much of
// the objects goes with it.
func table(obj runtime.Object, include string) *metav1.Table {
	t := &metav1.Table{TypeMeta: metav1.TypeMeta{Kind: "Table", APIVersion: metav1.SchemeGroupVersion.String()}, Rows: []metav1.TableRow{}}
	row := func(meta *metav1.ObjectMeta, window metav1.Duration, obj runtime.Object, usage ...corev1.ResourceList) {
		var cpu, memory resource.Quantity
		for _, u := range usage {
			cpu.Add(u[corev1.ResourceCPU])
			memory.Add(u[corev1.ResourceMemory])
		}
		t.ColumnDefinitions = columns
		t.Rows = append(t.Rows, metav1.TableRow{
			Cells:  []any{meta.Name, cpu.String(), memory.String(), window.Duration.String()},
			Object: runtime.RawExtension{Object: included(include, meta, obj)},
		})
	}
	node := func(m *metricsv1beta1.NodeMetrics) { row(&m.ObjectMeta, m.Window, m, m.Usage) }
	pod := func(m *metricsv1beta1.PodMetrics) {
		var all []corev1.ResourceList
		for _, c := range m.Containers {
			all = append(all, c.Usage)
		}
		row(&m.ObjectMeta, m.Window, m, all...)
	}
	switch o := obj.(type) {
	case *metricsv1beta1.NodeMetrics:
		node(o)
	case *metricsv1beta1.PodMetrics:
		pod(o)
	case *metricsv1beta1.NodeMetricsList:
		for i := range o.Items {
			node(&o.Items[i])
		}
	case *metricsv1beta1.PodMetricsList:
		for i := range o.Items {
			pod(&o.Items[i])
		}
	}
	return t
}

func included(include string, meta *metav1.ObjectMeta, obj runtime.Object) runtime.Object {
	switch metav1.IncludeObjectPolicy(include) {
	case metav1.IncludeNone:
		return nil
	case metav1.IncludeObject:
		return obj
	}
	return &metav1.PartialObjectMetadata{
		TypeMeta:   metav1.TypeMeta{Kind: "PartialObjectMetadata", APIVersion: metav1.SchemeGroupVersion.String()},
		ObjectMeta: *meta,
	}
}
