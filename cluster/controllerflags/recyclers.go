package controllerflags

import (
	"cmp"
	"fmt"
	"os"
	"time"

	"github.com/spf13/pflag"
	corev1 "k8s.io/api/core/v1"
	"sigs.k8s.io/yaml"

	"knarr/controlplane/controllermanager/persistentvolume"
)

// recyclerFlags are those of what empties the volumes of one kind.
type recyclerFlags struct {
	file, minimumFlag, perGiBFlag, fileFlag string
	minimum, perGiB                         int // seconds
	template                                *corev1.Pod
}

func (r *recyclerFlags) bind(f *pflag.FlagSet, kind, perGiB string, minimum int) {
	r.fileFlag, r.minimumFlag, r.perGiBFlag = "pv-recycler-pod-template-filepath-"+kind, "pv-recycler-minimum-timeout-"+kind, perGiB
	f.StringVar(&r.file, r.fileFlag, "", "`file` of the pod that empties volumes of kind "+kind+" whose policy is Recycle; its first volume becomes the one to empty")
	f.IntVar(&r.minimum, r.minimumFlag, minimum, "`seconds` that this pod may take at least")
	f.IntVar(&r.perGiB, r.perGiBFlag, 30, "`seconds` that this pod may take for each GiB, if that is longer")
}

// load reads the pod and names what cannot be.
func (r *recyclerFlags) load() error {
	switch {
	case r.minimum <= 0:
		return fmt.Errorf("--%s: must be greater than zero", r.minimumFlag)
	case r.perGiB < 0:
		return fmt.Errorf("--%s: must not be negative", r.perGiBFlag)
	case r.file == "":
		return nil
	}
	pod := &corev1.Pod{}
	b, err := os.ReadFile(r.file)
	if err == nil {
		err = yaml.UnmarshalStrict(b, pod)
	}
	if err == nil {
		err = persistentvolume.CheckTemplate(pod)
	}
	if err != nil {
		return fmt.Errorf("--%s: %s: %w", r.fileFlag, r.file, err)
	}
	r.template = pod
	return nil
}

func (r *recyclerFlags) recycler() persistentvolume.Recycler {
	return persistentvolume.Recycler{Template: r.template, Minimum: time.Duration(r.minimum) * time.Second, PerGiB: cmp.Or(time.Duration(r.perGiB)*time.Second, -1)}
}
