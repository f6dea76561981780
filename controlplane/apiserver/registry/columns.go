package registry

import (
	"time"

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
	c := column("Name", "string", metav1.ObjectMeta{}.SwaggerDoc()["name"], 0,
		func(o T) any { return o.GetName() })
	c.Format = "name"
	return c
}

func ageColumn[T Object]() Column[T] {
	return column("Age", "string", metav1.ObjectMeta{}.SwaggerDoc()["creationTimestamp"], 0,
		func(o T) any { return age(o.GetCreationTimestamp()) })
}

// age is the time since t as kubectl prints it.
func age(t metav1.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(time.Since(t.Time))
}
