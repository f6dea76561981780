package plugin

import (
	"testing"

	corev1 "k8s.io/api/core/v1"
	apiequality "k8s.io/apimachinery/pkg/api/equality"
)

func TestMergeTolerations(t *testing.T) {
	a := corev1.Toleration{Key: "a", Operator: corev1.TolerationOpEqual, Value: "1", Effect: corev1.TaintEffectNoSchedule}
	anyA := corev1.Toleration{Key: "a", Operator: corev1.TolerationOpExists}
	all := corev1.Toleration{Operator: corev1.TolerationOpExists}
	short := corev1.Toleration{Key: "b", Operator: corev1.TolerationOpExists, Effect: corev1.TaintEffectNoExecute, TolerationSeconds: new(int64(5))}
	long := short
	long.TolerationSeconds = new(int64(50))
	ever := short
	ever.TolerationSeconds = nil
	type list = []corev1.Toleration
	for i, c := range []struct{ first, second, want list }{
		{nil, nil, nil},
		{list{a}, list{a}, list{a}},
		{list{a}, list{anyA}, list{anyA}},
		{list{anyA}, list{a}, list{anyA}},
		{list{a, short}, list{all}, list{all}},
		{list{short}, list{long}, list{long}},
		{list{long, ever}, list{short}, list{ever}},
		{list{a}, list{short}, list{a, short}},
	} {
		if got := mergeTolerations(c.first, c.second); !apiequality.Semantic.DeepEqual(got, c.want) {
			t.Errorf("%d: got %v, want %v", i, got, c.want)
		}
	}
}
