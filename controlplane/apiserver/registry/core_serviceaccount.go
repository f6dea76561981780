package registry

import (
	"context"

	authenticationv1 "k8s.io/api/authentication/v1"
	corev1 "k8s.io/api/core/v1"
)

var serviceAccounts = &Kind[*corev1.ServiceAccount]{
	GroupVersionKind: corev1.SchemeGroupVersion.WithKind("ServiceAccount"),
	Plural:           "serviceaccounts",
	RecheckName:      true,
	Short:            []string{"sa"},

	Prepare: func(_ context.Context, sa, _ *corev1.ServiceAccount) {
		for i, ref := range sa.Secrets { // the rest of a reference means nothing here
			sa.Secrets[i] = corev1.ObjectReference{Name: ref.Name}
		}
	},
	Warn: func(_ context.Context, sa, old *corev1.ServiceAccount) []string {
		const enforce = "kubernetes.io/enforce-mountable-secrets"
		if _, is := sa.Annotations[enforce]; !is {
			return nil
		}
		if old != nil {
			if _, was := old.Annotations[enforce]; was {
				return nil
			}
		}
		return []string{"metadata.annotations[" + enforce + "]: deprecated in v1.32+; prefer separate namespaces to isolate access to mounted secrets"}
	},
	Columns: []Column[*corev1.ServiceAccount]{
		nameColumn[*corev1.ServiceAccount](),
		ageColumn[*corev1.ServiceAccount](),
	},
	Sub: []Subresource[*corev1.ServiceAccount]{{
		Name:  "token",
		Kind:  authenticationv1.SchemeGroupVersion.WithKind("TokenRequest"),
		Verbs: []string{"create"},
	}},
}
