package persistentvolume

import (
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	storagev1 "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// bindCases follow upstream's numbers for the same behaviour.
var bindCases = []struct {
	name, have, sync, want string
	// events are the kinds and reasons, and as much of the messages as matters.
	events []string
	pods   []string
	fails  bool
}{
	{name: "1-1 bind", sync: "pvc c",
		have: "pv v 1Gi Available\npvc c 1Gi Pending",
		want: "pv v 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=v has=1Gi completed=yes controller=yes"},
	{name: "1-2 no volume", sync: "pvc c", have: "pvc c 1Gi Pending", want: "pvc c 1Gi Pending",
		events: []string{"Normal FailedBinding no persistent volumes available for this claim and no storage class is set"}},
	{name: "1-3 reset to Pending", sync: "pvc c", have: "pvc c 1Gi Bound has=1Gi", want: "pvc c 1Gi Pending",
		events: []string{"Normal FailedBinding"}},
	{name: "1-4 the smallest", sync: "pvc c",
		have: "pv a 10Gi Available\npv b 2Gi Available\npv d 2Gi Available\npv e 512Mi Available\npvc c 1Gi Pending",
		want: "pv a 10Gi Available\npv b 2Gi Bound claim=c/uc controller=yes\npv d 2Gi Available\npv e 512Mi Available\npvc c 1Gi Bound volume=b has=2Gi completed=yes controller=yes"},
	{name: "1-5 reserved by name", sync: "pvc c",
		have: "pv a 10Gi Available claim=c\npv b 1Gi Available\npvc c 1Gi Pending",
		want: "pv a 10Gi Bound claim=c/uc\npv b 1Gi Available\npvc c 1Gi Bound volume=a has=10Gi completed=yes controller=yes"},
	{name: "1-6 reserved by UID", sync: "pvc c",
		have: "pv a 10Gi Available claim=c/uc\npv b 1Gi Available\npvc c 1Gi Pending",
		want: "pv a 10Gi Bound claim=c/uc\npv b 1Gi Available\npvc c 1Gi Bound volume=a has=10Gi completed=yes controller=yes"},
	{name: "1-7 reserved for another", sync: "pvc c",
		have: "pv a 1Gi Available claim=d\npvc c 1Gi Pending", want: "pv a 1Gi Available claim=d\npvc c 1Gi Pending",
		events: []string{"Normal FailedBinding"}},
	{name: "1-8 begun: the volume's spec is stored", sync: "pvc c",
		have: "pv a 1Gi Available claim=c/uc controller=yes\npv b 1Gi Available\npvc c 1Gi Pending",
		want: "pv a 1Gi Bound claim=c/uc controller=yes\npv b 1Gi Available\npvc c 1Gi Bound volume=a has=1Gi completed=yes controller=yes"},
	{name: "1-9 begun: the volume's status is stored", sync: "pvc c",
		have: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Pending",
		want: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=a has=1Gi completed=yes controller=yes"},
	{name: "1-10 begun: the claim's spec is stored", sync: "pvc c",
		have: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Pending volume=a completed=yes controller=yes",
		want: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=a has=1Gi completed=yes controller=yes"},
	{name: "1-11 selected by label", sync: "pvc c",
		have: "pv a 1Gi Available\npv b 2Gi Available label=x\npvc c 1Gi Pending select=x",
		want: "pv a 1Gi Available\npv b 2Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=b has=2Gi completed=yes controller=yes"},
	{name: "1-12 not selected", sync: "pvc c",
		have: "pv a 1Gi Available label=y\npvc c 1Gi Pending select=x", want: "pv a 1Gi Available\npvc c 1Gi Pending",
		events: []string{"Normal FailedBinding"}},
	{name: "1-13 delayed", sync: "pvc c",
		have: "sc w kubernetes.io/no-provisioner wait\npv a 1Gi Available class=w\npvc c 1Gi Pending class=w", want: "pv a 1Gi Available\npvc c 1Gi Pending class=w",
		events: []string{"Normal WaitForFirstConsumer waiting for first consumer to be created before binding"}},
	{name: "delayed, a pod waits", sync: "pvc c", pods: []string{"p"},
		have: "sc w kubernetes.io/no-provisioner wait\npvc c 1Gi Pending class=w", want: "pvc c 1Gi Pending class=w",
		events: []string{"Normal WaitForPodScheduled waiting for pod p to be scheduled"}},
	{name: "delayed, pods wait", sync: "pvc c", pods: []string{"p", "q"},
		have: "sc w kubernetes.io/no-provisioner wait\npvc c 1Gi Pending class=w", want: "pvc c 1Gi Pending class=w",
		events: []string{"Normal WaitForPodScheduled waiting for pods p,q to be scheduled"}},
	{name: "1-14 delayed, reserved", sync: "pvc c",
		have: "sc w kubernetes.io/no-provisioner wait\npv a 1Gi Available class=w claim=c/uc\npvc c 1Gi Pending class=w",
		want: "pv a 1Gi Bound claim=c/uc\npvc c 1Gi Bound class=w volume=a has=1Gi completed=yes controller=yes"},
	{name: "1-15 delayed, names the volume", sync: "pvc c",
		have: "sc w kubernetes.io/no-provisioner wait\npv a 1Gi Available class=w\npvc c 1Gi Pending class=w volume=a",
		want: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound class=w volume=a has=1Gi completed=yes"},
	{name: "1-17 not yet Available", sync: "pvc c",
		have: "pv a 1Gi Pending\npv b 1Gi Failed\npv d 1Gi Released\npv e 2Gi Available\npvc c 1Gi Pending",
		want: "pv a 1Gi Pending\npv b 1Gi Failed\npv d 1Gi Released\npv e 2Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=e has=2Gi completed=yes controller=yes"},
	{name: "1-18 selected by the scheduler", sync: "pvc c",
		have: "sc w kubernetes.io/no-provisioner wait\npv a 1Gi Available class=w claim=c/uc\npvc c 1Gi Pending class=w node=n",
		want: "pv a 1Gi Bound claim=c/uc\npvc c 1Gi Bound class=w volume=a has=1Gi completed=yes controller=yes node=n"},
	{name: "fewest access modes before smallest", sync: "pvc c",
		have: "pv a 1Gi Available modes=RWO,RWX\npv b 2Gi Available\npvc c 1Gi Pending",
		want: "pv a 1Gi Available\npv b 2Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=b has=2Gi completed=yes controller=yes"},
	{name: "more access modes than asked for", sync: "pvc c",
		have: "pv a 1Gi Available modes=RWO,RWX\npvc c 1Gi Pending modes=RWX",
		want: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=a has=1Gi completed=yes controller=yes"},
	{name: "an access mode is missing", sync: "pvc c",
		have: "pv a 1Gi Available\npvc c 1Gi Pending modes=RWO,RWX", want: "pv a 1Gi Available\npvc c 1Gi Pending", events: []string{"Normal FailedBinding"}},
	{name: "a volume that is deleted", sync: "pvc c",
		have: "pv a 1Gi Available deleting\npvc c 1Gi Pending", want: "pv a 1Gi Available deleting\npvc c 1Gi Pending", events: []string{"Normal FailedBinding"}},

	{name: "2-1 names a volume that is not there", sync: "pvc c", have: "pvc c 1Gi Pending volume=a", want: "pvc c 1Gi Pending volume=a"},
	{name: "2-2 and resets the status", sync: "pvc c", have: "pvc c 1Gi Bound volume=a has=1Gi", want: "pvc c 1Gi Pending volume=a"},
	{name: "2-3 names a free volume", sync: "pvc c",
		have: "pv a 1Gi Available\npvc c 1Gi Pending volume=a",
		want: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=a has=1Gi completed=yes"},
	{name: "2-4 both name each other", sync: "pvc c",
		have: "pv a 1Gi Pending claim=c\npvc c 1Gi Pending volume=a",
		want: "pv a 1Gi Bound claim=c/uc\npvc c 1Gi Bound volume=a has=1Gi completed=yes"},
	{name: "2-5 by UID", sync: "pvc c",
		have: "pv a 1Gi Pending claim=c/uc\npvc c 1Gi Pending volume=a",
		want: "pv a 1Gi Bound claim=c/uc\npvc c 1Gi Bound volume=a has=1Gi completed=yes"},
	{name: "2-6 names a volume of another claim", sync: "pvc c",
		have: "pv a 1Gi Bound claim=d/ud\npvc c 1Gi Pending volume=a", want: "pv a 1Gi Bound claim=d/ud\npvc c 1Gi Pending volume=a",
		events: []string{`Warning FailedBinding volume "a" already bound to a different claim.`}},
	{name: "2-7 and was bound by the controller", sync: "pvc c", fails: true,
		have: "pv a 1Gi Bound claim=d/ud\npvc c 1Gi Pending volume=a controller=yes", want: "pv a 1Gi Bound claim=d/ud\npvc c 1Gi Pending volume=a controller=yes",
		events: []string{`Warning FailedBinding volume "a" already bound to a different claim.`}},
	{name: "2-8 the selector does not matter then", sync: "pvc c",
		have: "pv a 1Gi Available\npvc c 1Gi Pending volume=a select=x",
		want: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=a has=1Gi completed=yes"},
	{name: "2-9 too small", sync: "pvc c",
		have: "pv a 1Gi Available\npvc c 2Gi Pending volume=a", want: "pv a 1Gi Available\npvc c 2Gi Pending volume=a",
		events: []string{`Warning VolumeMismatch Cannot bind to requested volume "a": requested PV is too small`}},
	{name: "2-10 another class", sync: "pvc c",
		have: "pv a 1Gi Available class=gold\npvc c 1Gi Pending volume=a", want: "pv a 1Gi Available\npvc c 1Gi Pending volume=a",
		events: []string{`Warning VolumeMismatch Cannot bind to requested volume "a": storageClassName does not match`}},
	{name: "2-11 another attributes class", sync: "pvc c",
		have: "pv a 1Gi Available\npvc c 1Gi Pending volume=a vac=x", want: "pv a 1Gi Available\npvc c 1Gi Pending volume=a",
		events: []string{`Warning VolumeMismatch Cannot bind to requested volume "a": volumeAttributesClassName does not match`}},
	{name: "2-12 the same attributes class", sync: "pvc c",
		have: "pv a 1Gi Available vac=x\npvc c 1Gi Pending volume=a vac=x",
		want: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=a has=1Gi vacnow=x completed=yes"},
	{name: "2-13 found by attributes class", sync: "pvc c",
		have: "pv a 1Gi Available\npv b 2Gi Available vac=x\npvc c 1Gi Pending vac=x",
		want: "pv a 1Gi Available\npv b 2Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=b has=2Gi vacnow=x completed=yes controller=yes"},

	{name: "3-1 bound, no volume named", sync: "pvc c", have: "pvc c 1Gi Bound completed=yes has=1Gi", want: "pvc c 1Gi Lost completed=yes",
		events: []string{"Warning ClaimLost Bound claim has lost reference to PersistentVolume. Data on the volume is lost!"}},
	{name: "3-2 bound, the volume is gone", sync: "pvc c", have: "pvc c 1Gi Bound volume=a completed=yes has=1Gi", want: "pvc c 1Gi Lost volume=a completed=yes",
		events: []string{"Warning ClaimLost Bound claim has lost its PersistentVolume. Data on the volume is lost!"}},
	{name: "lost only once", sync: "pvc c", have: "pvc c 1Gi Lost volume=a completed=yes", want: "pvc c 1Gi Lost volume=a completed=yes"},
	{name: "3-3 bound to a free volume", sync: "pvc c",
		have: "pv a 1Gi Available\npvc c 1Gi Pending volume=a completed=yes",
		want: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=a has=1Gi completed=yes"},
	{name: "3-5 bound", sync: "pvc c",
		have: "pv a 1Gi Bound claim=c/uc\npvc c 1Gi Bound volume=a completed=yes has=1Gi", want: "pv a 1Gi Bound claim=c/uc\npvc c 1Gi Bound volume=a has=1Gi completed=yes"},
	{name: "3-6 bound to a volume of another", sync: "pvc c",
		have: "pv a 1Gi Bound claim=d/ud\npvc c 1Gi Bound volume=a completed=yes", want: "pv a 1Gi Bound claim=d/ud\npvc c 1Gi Lost volume=a completed=yes",
		events: []string{"Warning ClaimMisbound Two claims are bound to the same volume, this one is bound incorrectly"}},
	{name: "a bound claim's capacity is the resizer's", sync: "pvc c",
		have: "pv a 5Gi Bound claim=c/uc\npvc c 1Gi Bound volume=a completed=yes has=1Gi", want: "pv a 5Gi Bound claim=c/uc\npvc c 1Gi Bound volume=a has=1Gi completed=yes"},
	{name: "5-2-3 the size before a resize", sync: "pvc c",
		have: "pv a 5Gi Available preresize=1Gi\npvc c 1Gi Pending",
		want: "pv a 5Gi Bound claim=c/uc controller=yes preresize=1Gi\npvc c 1Gi Bound volume=a has=1Gi completed=yes controller=yes"},

	{name: "4-1 a new volume", sync: "pv a", have: "pv a 1Gi Pending", want: "pv a 1Gi Available"},
	{name: "4-2 reserved", sync: "pv a", have: "pv a 1Gi Pending claim=c", want: "pv a 1Gi Available claim=c"},
	{name: "4-3 the claim is gone", sync: "pv a", have: "pv a 1Gi Bound claim=c/uc policy=Retain", want: "pv a 1Gi Released claim=c/uc"},
	{name: "4-4 another claim of the name", sync: "pv a",
		have: "pv a 1Gi Bound claim=c/uc policy=Retain\npvc c 1Gi Bound volume=a uid=other", want: "pv a 1Gi Released claim=c/uc\npvc c 1Gi Bound volume=a"},
	{name: "4-5 the claim is not bound yet", sync: "pv a",
		have: "pv a 1Gi Available claim=c/uc controller=yes\npvc c 1Gi Pending", want: "pv a 1Gi Available claim=c/uc controller=yes\npvc c 1Gi Pending"},
	{name: "4-6 the claim is bound", sync: "pv a",
		have: "pv a 1Gi Available claim=c/uc\npvc c 1Gi Bound volume=a", want: "pv a 1Gi Bound claim=c/uc\npvc c 1Gi Bound volume=a"},
	{name: "4-7 the claim has another volume", sync: "pv a",
		have: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=b", want: "pv a 1Gi Available\npvc c 1Gi Bound volume=b"},
	{name: "4-8 and a user had written it", sync: "pv a",
		have: "pv a 1Gi Bound claim=c/uc\npvc c 1Gi Bound volume=b", want: "pv a 1Gi Available claim=c\npvc c 1Gi Bound volume=b"},
	{name: "4-9 Delete matters once released", sync: "pv a",
		have: "pv a 1Gi Available claim=c/uc policy=Delete\npvc c 1Gi Bound volume=a", want: "pv a 1Gi Bound claim=c/uc\npvc c 1Gi Bound volume=a"},
	{name: "4-10 nobody can delete it", sync: "pv a", have: "pv a 1Gi Available claim=c/uc policy=Delete", want: "pv a 1Gi Failed claim=c/uc",
		events: []string{`Warning VolumeFailedDelete error getting deleter volume plugin for volume "a": no volume plugin matched`}},
	{name: "Failed is said once", sync: "pv a", have: "pv a 1Gi Failed claim=c/uc policy=Delete", want: "pv a 1Gi Failed claim=c/uc"},
	{name: "no recycler", sync: "pv a", have: "pv a 1Gi Bound claim=c/uc policy=Recycle", want: "pv a 1Gi Failed claim=c/uc",
		events: []string{"Warning VolumeFailedRecycle No recycler plugin found for the volume!"}},
	{name: "a policy of the future", sync: "pv a", have: "pv a 1Gi Bound claim=c/uc policy=Shred", want: "pv a 1Gi Failed claim=c/uc",
		events: []string{"Warning VolumeUnknownReclaimPolicy Volume has unrecognized PersistentVolumeReclaimPolicy"}},

	{name: "8-1 a host path below /tmp", sync: "pv a", have: "pv a 1Gi Bound claim=c/uc policy=Delete path=/tmp/a", want: ""},
	{name: "8-5 a host path elsewhere", sync: "pv a", have: "pv a 1Gi Bound claim=c/uc policy=Delete path=/srv/a", want: "pv a 1Gi Failed claim=c/uc",
		events: []string{"Warning VolumeFailedDelete host_path deleter only supports /tmp/.+ but received provided /srv/a"}},
	{name: "8-9 reserved and not bound", sync: "pv a",
		have: "pv a 1Gi Available claim=c policy=Delete path=/tmp/a\npvc c 10Gi Pending", want: "pv a 1Gi Available claim=c\npvc c 10Gi Pending"},
	{name: "8-10-1 its provisioner deletes it", sync: "pv a",
		have: "pv a 1Gi Bound claim=c/uc policy=Delete provisioned=d.example.com csi=d.example.com finalizers=external", want: "pv a 1Gi Released claim=c/uc provisioned=d.example.com finalizers=external"},
	{name: "8-10-2 a CSI volume made by hand", sync: "pv a",
		have: "pv a 1Gi Bound claim=c/uc policy=Delete csi=d.example.com", want: "pv a 1Gi Released claim=c/uc"},
	{name: "8-10-3 a driver took over", sync: "pv a",
		have: "pv a 1Gi Bound claim=c/uc policy=Delete provisioned=kubernetes.io/gce-pd finalizers=own,external",
		want: "pv a 1Gi Released claim=c/uc migrated=pd.csi.storage.gke.io provisioned=kubernetes.io/gce-pd finalizers=external"},
	{name: "8-11 made for a claim that has another", sync: "pv a",
		have: "pv a 1Gi Bound claim=c/uc policy=Delete provisioned=d.example.com\npvc c 1Gi Bound volume=b", want: "pv a 1Gi Released claim=c/uc provisioned=d.example.com\npvc c 1Gi Bound volume=b"},
	{name: "8-13 is being deleted", sync: "pv a",
		have: "pv a 1Gi Bound claim=c/uc policy=Delete path=/tmp/a finalizers=own deleting", want: "pv a 1Gi Released claim=c/uc deleting"},

	{name: "11-2 no such plugin", sync: "pvc c", have: "sc g kubernetes.io/none\npvc c 1Gi Pending class=g", want: "pvc c 1Gi Pending class=g",
		events: []string{"Warning ProvisioningFailed no volume plugin matched name: kubernetes.io/none"}},
	{name: "11-3 host paths are not provisioned", sync: "pvc c", have: "sc g kubernetes.io/host-path\npvc c 1Gi Pending class=g",
		want:   "pvc c 1Gi Pending class=g beta=kubernetes.io/host-path provisioner=kubernetes.io/host-path",
		events: []string{`Warning ProvisioningFailed Failed to create provisioner: provisioning in volume plugin "kubernetes.io/host-path" is disabled`}},
	{name: "11-14 no such class", sync: "pvc c", have: "pvc c 1Gi Pending class=g", want: "pvc c 1Gi Pending class=g",
		events: []string{`Warning ProvisioningFailed storageclass.storage.k8s.io "g" not found`}},
	{name: "11-15 no class wanted", sync: "pvc c", have: "sc g d.example.com default=true\npvc c 1Gi Pending class=", want: "pvc c 1Gi Pending class=",
		events: []string{"Normal FailedBinding"}},
	{name: "11-17 an external provisioner", sync: "pvc c", have: "sc g d.example.com\npvc c 1Gi Pending class=g",
		want: "pvc c 1Gi Pending class=g beta=d.example.com provisioner=d.example.com",
		events: []string{"Normal ExternalProvisioning Waiting for a volume to be created either by the external provisioner 'd.example.com' or manually by the system administrator. " +
			"If volume creation is delayed, please verify that the provisioner is running and correctly registered."}},
	{name: "11-20 mount options", sync: "pvc c", have: "sc g kubernetes.io/host-path mount=foo\npvc c 1Gi Pending class=g",
		want:   "pvc c 1Gi Pending class=g beta=kubernetes.io/host-path provisioner=kubernetes.io/host-path",
		events: []string{`Warning ProvisioningFailed Mount options are not supported by the provisioner but StorageClass "g" has mount options [foo]`}},
	{name: "11-21 a driver took over", sync: "pvc c", have: "sc g kubernetes.io/aws-ebs\npvc c 1Gi Pending class=g",
		want:   "pvc c 1Gi Pending class=g beta=ebs.csi.aws.com provisioner=ebs.csi.aws.com",
		events: []string{"Normal ExternalProvisioning"}},
	{name: "11-22 a volume is there", sync: "pvc c", have: "sc g d.example.com\npv a 1Gi Available class=g\npvc c 1Gi Pending class=g",
		want: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound class=g volume=a has=1Gi completed=yes controller=yes"},
	{name: "11-24 selected, and made there", sync: "pvc c", have: "sc g d.example.com wait\npv a 1Gi Available class=g\npvc c 1Gi Pending class=g node=n",
		want: "pv a 1Gi Available\npvc c 1Gi Pending class=g beta=d.example.com node=n provisioner=d.example.com", events: []string{"Normal ExternalProvisioning"}},
	{name: "11-25 a data source", sync: "pvc c", have: "sc g kubernetes.io/host-path\npvc c 1Gi Pending class=g source", want: "pvc c 1Gi Pending class=g",
		events: []string{`Warning ProvisioningFailed plugin "kubernetes.io/host-path" is not a CSI plugin. Only CSI plugin can provision a claim with a datasource`}},

	{name: "13-1 of a class", sync: "pvc c",
		have: "sc g d.example.com\npv a 1Gi Available\npv b 10Gi Available class=g\npvc c 1Gi Pending class=g",
		want: "pv a 1Gi Available\npv b 10Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound class=g volume=b has=10Gi completed=yes controller=yes"},
	{name: "13-2 of none", sync: "pvc c",
		have: "pv a 1Gi Available class=g\npv b 10Gi Available\npvc c 1Gi Pending",
		want: "pv a 1Gi Available\npv b 10Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=b has=10Gi completed=yes controller=yes"},

	{name: "14-1 a block volume", sync: "pvc c",
		have: "pv a 1Gi Available\npv b 10Gi Available mode=Block\npvc c 1Gi Pending mode=Block",
		want: "pv a 1Gi Available\npv b 10Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=b has=10Gi completed=yes controller=yes"},
	{name: "14-8 names one of the other mode", sync: "pvc c",
		have: "pv a 1Gi Available mode=Block\npvc c 1Gi Pending volume=a", want: "pv a 1Gi Available\npvc c 1Gi Pending volume=a",
		events: []string{`Warning VolumeMismatch Cannot bind to requested volume "a": incompatible volumeMode`}},
	{name: "14-13 reserved for a claim of the other mode", sync: "pv a",
		have: "pv a 1Gi Available mode=Block claim=c/uc\npvc c 1Gi Pending", want: "pv a 1Gi Available claim=c/uc\npvc c 1Gi Pending",
		events: []string{`Warning VolumeMismatch Cannot bind PersistentVolume to requested PersistentVolumeClaim "c" due to incompatible volumeMode.`,
			`Warning VolumeMismatch Cannot bind PersistentVolume "a" to requested PersistentVolumeClaim due to incompatible volumeMode.`}},

	{name: "15-1 no default class", sync: "pvc c", have: "sc g d.example.com\npvc c 1Gi Pending", want: "pvc c 1Gi Pending", events: []string{"Normal FailedBinding"}},
	{name: "15-5 the default class, later", sync: "pvc c", have: "sc g d.example.com default=true\npvc c 1Gi Pending",
		want: "pvc c 1Gi Pending class=g beta=d.example.com provisioner=d.example.com", events: []string{"Normal ExternalProvisioning"}},
	{name: "15-2 the first of several", sync: "pvc c", have: "sc h e.example.com default=true\nsc g d.example.com default=true\npvc c 1Gi Pending",
		want: "pvc c 1Gi Pending class=g beta=d.example.com provisioner=d.example.com", events: []string{"Normal ExternalProvisioning"}},
	{name: "a volume without a class comes before the default class", sync: "pvc c", have: "sc g d.example.com default=true\npv a 1Gi Available\npvc c 1Gi Pending",
		want: "pv a 1Gi Bound claim=c/uc controller=yes\npvc c 1Gi Bound volume=a has=1Gi completed=yes controller=yes"},
}

func TestSteps(t *testing.T) {
	for _, tt := range bindCases {
		t.Run(tt.name, func(t *testing.T) {
			w := parse(t, tt.have)
			w.pods = tt.pods
			if failed := w.sync(t, tt.sync); failed != tt.fails {
				t.Errorf("failed: %t", failed)
			}
			if got := w.String(); got != tt.want {
				t.Errorf("got\n%s\nwant\n%s", got, tt.want)
			}
			for i, e := range w.events {
				if i >= len(tt.events) || !strings.HasPrefix(e, tt.events[i]) {
					t.Errorf("event %q, want %q", e, tt.events)
				}
			}
			if len(w.events) != len(tt.events) {
				t.Errorf("events %q, want %q", w.events, tt.events)
			}
		})
	}
}

// Finalizers and annotations follow who deletes a provisioned volume.
func TestMigration(t *testing.T) {
	for _, tt := range []struct{ name, have, want string }{
		{"13-1 has the finalizer", "provisioned=kubernetes.io/host-path policy=Delete finalizers=own", "provisioned=kubernetes.io/host-path finalizers=own"},
		{"13-2 has it not", "provisioned=kubernetes.io/host-path policy=Delete", "provisioned=kubernetes.io/host-path finalizers=own"},
		{"13-5 has the provisioner's", "provisioned=kubernetes.io/host-path policy=Delete finalizers=external", "provisioned=kubernetes.io/host-path finalizers=own"},
		{"13-7 a driver took over", "provisioned=kubernetes.io/gce-pd policy=Delete finalizers=own,external", "migrated=pd.csi.storage.gke.io provisioned=kubernetes.io/gce-pd finalizers=external"},
		{"13-10 not provisioned", "policy=Delete finalizers=own,external", "finalizers=external,own"},
		{"13-12 retained", "provisioned=kubernetes.io/host-path policy=Retain", "provisioned=kubernetes.io/host-path"},
		{"13-14 retained now", "provisioned=kubernetes.io/host-path policy=Retain finalizers=own", "provisioned=kubernetes.io/host-path"},
		{"of a driver", "provisioned=d.example.com policy=Delete finalizers=external", "provisioned=d.example.com finalizers=external"},
		{"no driver took over", "provisioned=d.example.com migrated=x", "provisioned=d.example.com"},
		{"is being deleted", "provisioned=kubernetes.io/host-path policy=Delete deleting", "provisioned=kubernetes.io/host-path deleting"},
	} {
		w := parse(t, "pv a 1Gi Available "+tt.have)
		w.sync(t, "pv a")
		if got, want := w.String(), "pv a 1Gi Available "+tt.want; got != want {
			t.Errorf("%s: got %s, want %s", tt.name, got, want)
		}
	}
}

// TestNoDynamicProvisioning: a claim that no volume fits waits, and nothing is said.
func TestNoDynamicProvisioning(t *testing.T) {
	class := "g"
	v := &claimView{class: &storagev1.StorageClass{ObjectMeta: metav1.ObjectMeta{Name: class}, Provisioner: "d.example.com"}, static: true,
		claim: &corev1.PersistentVolumeClaim{Spec: corev1.PersistentVolumeClaimSpec{StorageClassName: &class}}}
	if s := v.next(); s.claim != nil || len(s.events) > 0 || !s.last {
		t.Errorf("%+v", s)
	}
	v.static = false
	if s := v.next(); s.claim == nil {
		t.Error("the claim is handed over to nobody")
	}
}
