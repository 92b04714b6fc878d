//! What can go wrong with the database, by what the caller should do about it.

/// A failure of the store. Never an outcome of a message.
#[derive(Debug, thiserror::Error)]
pub enum StoreError {
    /// The database is away, busy or restarting: hold what you have and try again.
    #[error("the database is not available: {0}")]
    Unavailable(#[source] sqlx::Error),
    /// The database refuses a value: the same statement will fail again.
    #[error("the database refuses the data: {0}")]
    Data(#[source] sqlx::Error),
    /// A row, a column or a statement is not as the code expects: a bug or a wrong schema.
    #[error("the database is not as expected: {0}")]
    Unexpected(String),
}

impl StoreError {
    pub(super) fn url(error: sqlx::Error) -> Self {
        // The text of the error may hold the URL with its password.
        let kind = if matches!(error, sqlx::Error::Configuration(_)) { "does not parse" } else { "is not usable" };
        Self::Unexpected(format!("`database.url` {kind}; expected postgres://user:password@host:port/name"))
    }

    /// Whether holding and trying again can help.
    #[must_use]
    pub fn is_transient(&self) -> bool {
        matches!(self, Self::Unavailable(_))
    }

    /// The SQLSTATE of the database's answer, if it gave one. Its message may quote the value; this never does.
    #[must_use]
    pub fn sqlstate(&self) -> Option<String> {
        match self {
            Self::Unavailable(error) | Self::Data(error) => sqlstate(error),
            Self::Unexpected(_) => None,
        }
    }
}

fn sqlstate(error: &sqlx::Error) -> Option<String> {
    error.as_database_error().and_then(|e| e.code()).map(|code| code.into_owned())
}

impl From<sqlx::Error> for StoreError {
    fn from(error: sqlx::Error) -> Self {
        let code = sqlstate(&error);
        // A row outside every partition is a "check violation" that names its table and no constraint (a check names both,
        // a trigger neither): our own fault, so it holds.
        let no_partition = code.as_deref() == Some("23514")
            && error.as_database_error().is_some_and(|e| e.constraint().is_none() && e.table().is_some());
        match code.as_deref().map(|code| code.get(..2).unwrap_or_default()) {
            Some("23") if no_partition => Self::Unavailable(error),
            // Data exception, integrity constraint violation.
            Some("22" | "23") => Self::Data(error),
            // Syntax error, access rule, undefined object: our own bug or the wrong schema.
            Some("42" | "26" | "0A") => Self::Unexpected(error.to_string()),
            Some(_) => Self::Unavailable(error),
            None if is_shape(&error) => Self::Unexpected(error.to_string()),
            None => Self::Unavailable(error),
        }
    }
}

fn is_shape(error: &sqlx::Error) -> bool {
    matches!(
        error,
        sqlx::Error::RowNotFound
            | sqlx::Error::ColumnNotFound(_)
            | sqlx::Error::ColumnDecode { .. }
            | sqlx::Error::ColumnIndexOutOfBounds { .. }
            | sqlx::Error::TypeNotFound { .. }
            | sqlx::Error::Decode(_)
            | sqlx::Error::Encode(_)
    )
}
