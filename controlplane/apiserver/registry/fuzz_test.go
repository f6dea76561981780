package registry

import (
	"fmt"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/intstr"
	"sigs.k8s.io/randfill"
)

// words are what kinds' rules look for.
var words = []string{"", "a", "a", "A_", "*", "kubernetes.io/x", "10.0.0.1", "10.0.0.0/8", "fd00::/64", "Always", "Never", "RollingUpdate", "ClusterIP", "None",
	"ExternalName", "TCP", "self.x", "object.spec == 1", "{.a}", "RSA", "x.y", "2026-01-02", "[", "\x00\xff", "system:masters"}

// Objects of every kind that are filled at random pass through all of its rules
// without a panic, alone and as updates of each other.
func FuzzKinds(f *testing.F) {
	for i := range Resources {
		f.Add(i, int64(i), uint8(40))
		f.Add(i, int64(-i), uint8(200))
	}
	f.Fuzz(func(t *testing.T, which int, seed int64, empty uint8) {
		r := Resources[uint(which)%uint(len(Resources))]
		fill := randfill.NewWithSeed(seed).NilChance(float64(empty)/256).NumElements(0, 3).MaxDepth(12).Funcs(
			func(s *string, c randfill.Continue) { *s = words[c.Intn(len(words))] },
			func(q *resource.Quantity, c randfill.Continue) {
				*q = *resource.NewMilliQuantity(int64(c.Uint64()>>uint(c.Intn(64))), resource.DecimalSI)
			},
			func(v *intstr.IntOrString, c randfill.Continue) {
				*v = []intstr.IntOrString{intstr.FromInt32(int32(c.Uint32())), intstr.FromString("30%"), intstr.FromString("x"), {}}[c.Intn(4)]
			},
			func(v *metav1.Time, c randfill.Continue) { *v = metav1.Unix(int64(c.Int31()), 0) },
			func(v *metav1.MicroTime, c randfill.Continue) {
				*v = metav1.NewMicroTime(time.Unix(int64(c.Int31()), 0))
			},
			func(v *runtime.RawExtension, c randfill.Continue) {
				v.Raw = []byte([]string{"", "{}", "null", "[1", `{"kind":"a"}`}[c.Intn(5)])
			},
			func(v *metav1.FieldsV1, _ randfill.Continue) { v.Raw = []byte("{}") },
		)
		all := []Object{r.New(), r.New()}
		for _, o := range all {
			fill.Fill(o)
		}
		all = append(all, r.New())
		defer func() {
			if p := recover(); p != nil {
				panic(fmt.Sprintf("%s: %v", r.GVK(), p))
			}
		}()
		for _, obj := range all {
			exercise(r, clone(obj), nil)
			for _, old := range slices.Backward(all) {
				exercise(r, clone(obj), clone(old))
			}
		}
	})
}
