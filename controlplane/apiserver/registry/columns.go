package registry

import (
	"fmt"
	"sort"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/duration"
)

// column makes one column of `kubectl get`. Priority 0 is always shown, 1
// only by -o wide.
func column[T Object](name, typ, description string, priority int32, cell func(T) any) Column[T] {
	return Column[T]{metav1.TableColumnDefinition{
		Name: name, Type: typ, Description: description, Priority: priority}, cell}
}

func nameColumn[T Object]() Column[T] {
	return nameColumnOf(func(o T) any { return o.GetName() })
}

func nameColumnOf[T Object](cell func(T) any) Column[T] {
	c := column("Name", "string", metav1.ObjectMeta{}.SwaggerDoc()["name"], 0, cell)
	c.Format = "name"
	return c
}

func ageColumn[T Object]() Column[T] {
	return column("Age", "string", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], 0,
		func(o T) any { return age(o.GetCreationTimestamp()) })
}

// createdColumn is the moment of creation, for kinds without columns of their own.
func createdColumn[T Object]() Column[T] {
	return column("Created At", "date", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], 0,
		func(o T) any { return o.GetCreationTimestamp().UTC().Format(time.RFC3339) })
}

// templateColumns are the wide columns of what makes pods.
func templateColumns[T Object](spec func(T) *corev1.PodSpec) []Column[T] {
	join := func(o T, part func(*corev1.Container) string) string {
		s := spec(o)
		if s == nil {
			return ""
		}
		var all []string
		for i := range s.Containers {
			all = append(all, part(&s.Containers[i]))
		}
		return strings.Join(all, ",")
	}
	return []Column[T]{
		column("Containers", "string", "Names of each container in the template.", 1, func(o T) any {
			return join(o, func(c *corev1.Container) string { return c.Name })
		}),
		column("Images", "string", "Images referenced by each container in the template.", 1, func(o T) any {
			return join(o, func(c *corev1.Container) string { return c.Image })
		}),
	}
}

// age is the time since t as kubectl prints it.
func age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}

func orElse(s, otherwise string) string {
	if s == "" {
		return otherwise
	}
	return s
}

// deref is the value p points to, or otherwise when p is nil.
func deref[V any](p *V, otherwise V) V {
	if p == nil {
		return otherwise
	}
	return *p
}

// fewOf joins the first n of all and says how many it left out.
func fewOf(all []string, n int, none string) string {
	switch {
	case len(all) > n:
		return fmt.Sprintf("%s + %d more...", strings.Join(all[:n], ","), len(all)-n)
	case len(all) == 0:
		return none
	}
	return strings.Join(all, ",")
}

// accessModes writes volume access modes in their short names, in fixed order.
func accessModes(modes []corev1.PersistentVolumeAccessMode) string {
	short := []struct {
		mode corev1.PersistentVolumeAccessMode
		name string
	}{
		{corev1.ReadWriteOnce, "RWO"}, {corev1.ReadOnlyMany, "ROX"},
		{corev1.ReadWriteMany, "RWX"}, {corev1.ReadWriteOncePod, "RWOP"},
	}
	var out []string
	for _, s := range short {
		for _, m := range modes {
			if m == s.mode {
				out = append(out, s.name)
				break
			}
		}
	}
	return strings.Join(out, ",")
}

func sortedKeys[V any](m map[string]V) []string {
	keys := make([]string, 0, len(m))
	for k := range m {
		keys = append(keys, k)
	}
	sort.Strings(keys)
	return keys
}
