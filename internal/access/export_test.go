package access

// SealRenewal is what the database keeps of a refresh token.
func (o *OIDC) SealRenewal(refresh string) []byte { return o.sealer.seal(sealRenewal, []byte(refresh)) }
