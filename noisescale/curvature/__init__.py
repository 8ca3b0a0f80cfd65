"""What takes the Hessian: B_noise by Hessian-vector products and by line searches along gradients. First derivatives
alone belong to `tracking` and `per_example`.
"""
